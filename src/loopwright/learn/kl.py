"""The divergence from a reference model, estimated from the sampled tokens only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loopwright.learn.body import Body
from loopwright.learn.losses import MAX_LOG_RATIO
from loopwright.types import KlKind


@dataclass(frozen=True, slots=True)
class KlTerm:
    """`coefficient` times the divergence from `reference`, a frozen model, is added to each token's loss. A driver
    whose ranks compute has no reference: it only plans."""

    kind: KlKind
    coefficient: float
    reference: Body | None


def divergence(kind: KlKind, logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """One estimate per token, of KL(policy, reference)."""
    log_ratio = logprobs - reference_logprobs
    match kind:
        case KlKind.K1:
            return log_ratio
        case KlKind.K2:
            return log_ratio.square() / 2
        case KlKind.K3:
            inverse = (-log_ratio).clamp(max=MAX_LOG_RATIO)
            return inverse.exp() - inverse - 1
