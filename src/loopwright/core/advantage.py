"""Advantages of a group's members, from their rewards. Each is a small pure function.

An advantage says how much better a member did than its siblings. A group of equals, or of one, teaches nothing and
gives zeros, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Advantage = Callable[[Sequence[float]], tuple[float, ...]]

EPSILON = 1e-6
"""Added to the standard deviation, as verl does. Peers differ, see docs/maths.md."""

INDISTINGUISHABLE = 1e-5
"""A group whose rewards spread no more than this, times the largest of them if that is above 1, is a group of equals:
dividing by its standard deviation would blow rounding noise up into a full-size advantage."""


def grpo(rewards: Sequence[float]) -> tuple[float, ...]:
    """Reward minus the group's mean, over its sample standard deviation (GRPO)."""
    centred = grpo_no_std(rewards)
    if not any(centred):
        return centred
    std = math.hypot(*centred) / math.sqrt(len(centred) - 1)
    return tuple(c / (std + EPSILON) for c in centred)


def grpo_no_std(rewards: Sequence[float]) -> tuple[float, ...]:
    """Reward minus the group's mean (Dr. GRPO)."""
    if len(rewards) < 2 or _all_equal(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return tuple(r - mean for r in rewards)


def _all_equal(rewards: Sequence[float]) -> bool:
    return max(rewards) - min(rewards) <= INDISTINGUISHABLE * max(1.0, *(abs(r) for r in rewards))


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "grpo_no_std": grpo_no_std}
