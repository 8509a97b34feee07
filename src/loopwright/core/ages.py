"""How old the tokens of a batch are when it is trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loopwright.core.staleness import staleness
from loopwright.types import Group


def staleness_numbers(groups: Iterable[Group], step: int) -> dict[str, float]:
    """Mean and largest staleness of the tokens that train step `step` learns from; nothing if there are none."""
    episodes = (rollout.episode for group in groups for rollout in group.rollouts)
    versions = [chain.versions[chain.mask] for episode in episodes if episode for chain in episode.chains]
    tokens = np.concatenate(versions) if versions else np.empty(0)
    if not tokens.size:
        return {}
    oldest = int(tokens.min())
    return {"staleness/mean": step - 1 - float(tokens.mean()), "staleness/max": float(staleness(oldest, step))}
