"""Losses: pure functions from the tokens of a micro-batch to one loss per token.

How tokens add up to one number is not their business: the learner multiplies by the token weights and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from loopwright.types import Level

MAX_LOG_RATIO = 20.0
"""Beyond e^20 a ratio is no information, and e^89 is no float32. verl's bound."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The trained tokens of a micro-batch, one entry each. Chains are whole: none is cut between micro-batches.

    Only `logprobs` carries a gradient. `sequence` says which chain a token belongs to, from 0 up.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    sequence: torch.Tensor
    reference_logprobs: torch.Tensor | None = None

    def ratio(self, level: Level) -> torch.Tensor:
        """How much likelier each token has become since the old logprobs.

        Of a sequence: the geometric mean over its tokens, whose gradient each token receives for its own logprob alone
        (GSPO's token form), so that what multiplies a token's loss multiplies its own gradient.
        """
        log_ratio = self.logprobs - self.old_logprobs
        if level is Level.SEQUENCE:
            mean = sequence_sums(log_ratio.detach(), self.sequence) / self.sequence.bincount()
            log_ratio = self.logprobs - self.logprobs.detach() + mean[self.sequence]
        return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


TokenLoss = Callable[[TokenBatch], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Clip:
    """Where a loss stops following the ratio. With `both_ways`, it does so whatever the sign of the advantage."""

    low: float
    high: float
    level: Level = Level.TOKEN
    both_ways: bool = False

    def holds(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens that lost enough (ratio below 1 - low), and that gained enough, each as its advantage wants it."""
        ratio, advantages = batch.ratio(self.level).detach(), batch.advantages
        below, above = ratio < 1 - self.low, ratio > 1 + self.high
        if self.both_ways:
            return below & (advantages != 0), above & (advantages != 0)
        return below & (advantages < 0), above & (advantages > 0)


def ppo_clip(batch: TokenBatch, *, clip_low: float, clip_high: float, dual_clip: float | None = None) -> torch.Tensor:
    """The clipped policy-gradient loss. `dual_clip` bounds the ratio of a bad token that has become likelier."""
    loss = _clipped(batch.ratio(Level.TOKEN), batch.advantages, clip_low, clip_high)
    if dual_clip is None:
        return loss
    bound = -dual_clip * batch.advantages
    return torch.where(batch.advantages < 0, torch.minimum(loss, bound), loss)


def gspo(batch: TokenBatch, *, clip_low: float, clip_high: float) -> torch.Tensor:
    """The clipped loss of the sequence's ratio: a sequence is followed, or held, as a whole."""
    return _clipped(batch.ratio(Level.SEQUENCE), batch.advantages, clip_low, clip_high)


def cispo(batch: TokenBatch, *, clip_low: float, clip_high: float) -> torch.Tensor:
    """The policy gradient weighted by a clipped ratio without gradient: every token goes on learning."""
    weight = batch.ratio(Level.TOKEN).detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight * batch.advantages * batch.logprobs


def reinforce(batch: TokenBatch) -> torch.Tensor:
    """The plain policy gradient, blind to how far the policy has moved."""
    return -batch.advantages * batch.logprobs


def sequence_sums(values: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """The sum over each sequence's tokens."""
    count = int(sequence.max()) + 1 if len(sequence) else 0
    return values.new_zeros(count).index_add_(0, sequence, values)


def _clipped(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
