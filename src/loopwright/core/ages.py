"""How old the tokens of a batch are when it is trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loopwright.core.staleness import staleness
from loopwright.types import Group


def staleness_numbers(groups: Iterable[Group], step: int, *, masked: int) -> dict[str, float]:
    """Mean and largest staleness of the tokens that train step `step` learns from, and the share of sampled tokens that
    were too old for it (`masked` of them). A batch without tokens has none of these metrics."""
    episodes = (rollout.episode for group in groups for rollout in group.rollouts)
    versions = [chain.versions[chain.mask] for episode in episodes if episode for chain in episode.trained_chains]
    tokens = np.concatenate(versions) if versions else np.empty(0)
    if not tokens.size + masked:
        return {}
    numbers = {"staleness/masked": masked / (tokens.size + masked)}
    if tokens.size:
        numbers["staleness/mean"] = step - 1 - float(tokens.mean())
        numbers["staleness/max"] = float(staleness(int(tokens.min()), step))
    return numbers
