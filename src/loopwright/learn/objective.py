"""What a micro-batch adds to the loss, once its logprobs are known.

Per token: the policy loss times its importance weight, plus the divergence from the reference. Token weights turn that
into the micro-batch's share of one number, so that the shares of a mini-batch add up to its loss.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from loopwright.learn.kl import divergence
from loopwright.learn.losses import TokenBatch
from loopwright.learn.meter import StepMeter
from loopwright.learn.recipe import Recipe


def rollout_loss(
    recipe: Recipe, batch: TokenBatch, weights: torch.Tensor, entropy: torch.Tensor, meter: StepMeter
) -> torch.Tensor:
    """The share of sampled tokens, whose importance has no say in how far they may drift from the reference."""
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
    return (losses * weights).sum()
