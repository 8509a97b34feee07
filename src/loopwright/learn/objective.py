"""The loss of a micro-batch, token by token, given its logprobs.

Per token it is the policy loss times the importance weight, plus the divergence from the reference. The token weights
turn this into the token's share, so that the shares of a mini-batch add up to its loss.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from loopwright.learn.kl import divergence
from loopwright.learn.losses import TokenBatch
from loopwright.learn.meter import StepMeter
from loopwright.learn.recipe import Recipe


def token_shares(
    recipe: Recipe, batch: TokenBatch, weights: torch.Tensor, entropy: torch.Tensor, meter: StepMeter
) -> torch.Tensor:
    """Each sampled token's share of the loss. The importance weight does not multiply the divergence from the
    reference."""
    importance, outside = recipe.importance.weights(batch)
    losses = recipe.loss(batch) * importance
    noted = {"importance_mean": importance, "importance_outside": outside, "entropy": entropy}
    if recipe.clip is not None:
        noted["clipped_low"], noted["clipped_high"] = recipe.clip.holds(batch)
    if recipe.kl is not None and batch.reference_logprobs is not None:
        drift = divergence(recipe.kl.kind, batch.logprobs, batch.reference_logprobs)
        losses = losses + recipe.kl.coefficient * drift
        noted["kl"] = drift.detach()
    meter.tokens(replace(batch, logprobs=batch.logprobs.detach()), **noted)
    return losses * weights
