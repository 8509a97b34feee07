"""A batch of groups for one train step, and its numbers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopwright.types import Failed, FailureCause, Group, Rollout, StopReason


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups in order of task set and draw. `metrics` are plain numbers, ready for a tracker."""

    groups: tuple[Group, ...]
    metrics: Mapping[str, float]


def batch_metrics(groups: Sequence[Group], attempts: Sequence[Rollout], groups_failed: int) -> dict[str, float]:
    """Rewards and lengths of what is trained, and failures among all `attempts` that it took."""
    rewards = [reward for group in groups for reward in group.rewards]
    episodes = [rollout.episode for group in groups for rollout in group.rollouts if rollout.episode]
    failures = Counter(r.reward.cause for r in attempts if isinstance(r.reward, Failed))
    return {
        "reward/mean": statistics.fmean(rewards) if rewards else 0.0,
        "reward/std": statistics.pstdev(rewards) if rewards else 0.0,
        "response/tokens": statistics.fmean(e.sampled_tokens for e in episodes) if episodes else 0.0,
        "response/truncated": statistics.fmean(e.stop is StopReason.BUDGET for e in episodes) if episodes else 0.0,
        "groups/failed": float(groups_failed),
        **{f"failures/{cause}": float(failures[cause]) for cause in FailureCause},
    }
