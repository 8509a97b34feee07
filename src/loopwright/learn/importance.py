"""Importance weights: they correct for tokens that were sampled by another policy, or another kernel, than the trained
one.

Sampled logprobs are used in a train step only here. The weights carry no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopwright.learn.losses import TokenBatch, sequence_sums
from loopwright.types import ImportanceKind, Level


@dataclass(frozen=True, slots=True)
class Importance:
    """How the weight of a token is computed, and its bounds."""

    kind: ImportanceKind = ImportanceKind.TRUNCATE
    level: Level = Level.TOKEN
    cap: float = 2.0
    floor: float = 0.0

    def weights(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The weight of each token, and whether it left the bounds."""
        if self.kind is ImportanceKind.OFF:
            return torch.ones_like(batch.old_logprobs), torch.zeros_like(batch.old_logprobs, dtype=torch.bool)
        weight = self._unbounded(batch).detach()
        outside = (weight < self.floor) | (weight > self.cap)
        if self.kind is ImportanceKind.MASK:
            return weight.masked_fill(outside, 0.0), outside
        return weight.clamp(self.floor, self.cap), outside

    def _unbounded(self, batch: TokenBatch) -> torch.Tensor:
        """The weights before bounding. For a sequence it is the product over its tokens: the probability ratio of the
        whole sequence."""
        log_weight = batch.old_logprobs - batch.sampled_logprobs
        if self.level is Level.SEQUENCE:
            log_weight = sequence_sums(log_weight, batch.sequence)[batch.sequence]
        return log_weight.exp()
