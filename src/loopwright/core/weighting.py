"""How much each token counts in the loss. Weights are per rollout: one with ten chains is still one rollout (T6)."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.types import Aggregate


def token_weights(sampled: Sequence[int], aggregate: Aggregate, constant_length: int) -> list[float]:
    """The weight of one token of each rollout, given how many tokens each sampled (in all its chains).

    `constant_length` is what `Aggregate.CONSTANT` divides by.
    """
    rollouts = sum(1 for n in sampled if n)
    match aggregate:
        case Aggregate.SEQUENCE:
            return [1.0 / (n * rollouts) if n else 0.0 for n in sampled]
        case Aggregate.TOKEN:
            return [1.0 / sum(sampled) if n else 0.0 for n in sampled]
        case Aggregate.CONSTANT:
            return [1.0 / (constant_length * rollouts) if n else 0.0 for n in sampled]
