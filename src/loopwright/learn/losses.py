"""Losses: pure functions from the tokens of a micro-batch to one loss per token.

A loss does not decide how tokens add up to one number: the learner multiplies by the token weights and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from loopwright.types import Level

MAX_LOG_RATIO = 20.0
"""The bound of verl. A ratio above e^20 carries no information, and e^89 does not fit into a float32."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The trained tokens of a micro-batch, one entry each. No chain is split between micro-batches.

    Only `logprobs` carries a gradient. `sequence` is the number of the token's chain, counted from 0.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    sequence: torch.Tensor
    reference_logprobs: torch.Tensor | None = None

    def ratio(self, level: Level) -> torch.Tensor:
        """The probability of each token now, divided by its probability under the old logprobs.

        For a sequence it is the geometric mean over its tokens. Each token gets this gradient for its own logprob only
        (GSPO's token form), so a factor on a token's loss is a factor on that token's gradient.
        """
        log_ratio = self.logprobs - self.old_logprobs
        if level is Level.SEQUENCE:
            mean = sequence_sums(log_ratio.detach(), self.sequence) / self.sequence.bincount()
            log_ratio = self.logprobs - self.logprobs.detach() + mean[self.sequence]
        return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


TokenLoss = Callable[[TokenBatch], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Clip:
    """The bounds beyond which a loss ignores the ratio. With `both_ways`, both bounds hold for both signs of the
    advantage."""

    low: float
    high: float
    level: Level = Level.TOKEN
    both_ways: bool = False

    def holds(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Which tokens are clipped at the lower bound (ratio below 1 - low), and which at the upper bound."""
        ratio, advantages = batch.ratio(self.level).detach(), batch.advantages
        below, above = ratio < 1 - self.low, ratio > 1 + self.high
        if self.both_ways:
            return below & (advantages != 0), above & (advantages != 0)
        return below & (advantages < 0), above & (advantages > 0)


def ppo_clip(batch: TokenBatch, *, clip_low: float, clip_high: float, dual_clip: float | None = None) -> torch.Tensor:
    """The clipped policy-gradient loss. `dual_clip` bounds the ratio of a token with a negative advantage that has
    become more likely."""
    loss = _clipped(batch.ratio(Level.TOKEN), batch.advantages, clip_low, clip_high)
    if dual_clip is None:
        return loss
    bound = -dual_clip * batch.advantages
    return torch.where(batch.advantages < 0, torch.minimum(loss, bound), loss)


def gspo(batch: TokenBatch, *, clip_low: float, clip_high: float) -> torch.Tensor:
    """The clipped loss with the sequence's ratio: a sequence is clipped as a whole, or not at all."""
    return _clipped(batch.ratio(Level.SEQUENCE), batch.advantages, clip_low, clip_high)


def cispo(batch: TokenBatch, *, clip_low: float, clip_high: float) -> torch.Tensor:
    """The policy gradient, weighted by a clipped ratio that has no gradient. So every token keeps a gradient."""
    weight = batch.ratio(Level.TOKEN).detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight * batch.advantages * batch.logprobs


def reinforce(batch: TokenBatch) -> torch.Tensor:
    """The plain policy gradient. It ignores how far the policy has moved."""
    return -batch.advantages * batch.logprobs


def sequence_sums(values: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """The sum over each sequence's tokens."""
    count = int(sequence.max()) + 1 if len(sequence) else 0
    return values.new_zeros(count).index_add_(0, sequence, values)


def _clipped(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
