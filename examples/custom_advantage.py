"""An advantage is a function: here, ranks instead of rewards, so that one wild score cannot drown the others.

learner:
  advantage:
    kind: python
    path: custom_advantage.py:ranks
    args: {spread: 1.0}
"""

from __future__ import annotations

from collections.abc import Sequence

from loopwright import Scores, teaches_nothing


def ranks(groups: Sequence[Scores], spread: float = 1.0) -> list[list[float]]:
    """From -spread for the worst member of a group to spread for its best; equals share their mean rank."""
    return [[spread * rank for rank in _ranks(group.rewards)] for group in groups]


def _ranks(rewards: Sequence[float]) -> list[float]:
    if teaches_nothing(rewards):
        return [0.0] * len(rewards)
    worse_minus_better = [sum((r > other) - (r < other) for other in rewards) for r in rewards]
    return [balance / (len(rewards) - 1) for balance in worse_minus_better]
