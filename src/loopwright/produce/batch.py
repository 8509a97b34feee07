"""A batch of groups for one train step, and its numbers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loopwright.produce.settling import Ended
from loopwright.types import Failed, FailureCause, Group, GroupStatus, Rollout, Scored, StopReason


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups in order of task set and draw. `metrics` are plain numbers, ready for a tracker."""

    groups: tuple[Group, ...]
    metrics: Mapping[str, float]


def batch_metrics(
    task_sets: Sequence[str], groups: Sequence[Group], attempts: Sequence[Rollout], ended: Sequence[Ended]
) -> dict[str, float]:
    """Rewards and lengths of what is trained, and what became of all the `ended` groups and `attempts` that it took.

    With several task sets, the numbers of each follow under its name: `reward/mean/<task set>`. The names of parts may
    have slashes themselves, so those stand apart: `reward/parts_of/<task set>/<part>`.
    """
    failures = Counter(r.reward.cause for r in attempts if isinstance(r.reward, Failed))
    failures.update(f.cause for one in ended for f in one.failures if f.cause is FailureCause.FILTER)
    metrics = {**_numbers(groups, ended), **_parts(groups, "reward/parts")}
    metrics |= {f"failures/{cause}": float(failures[cause]) for cause in FailureCause}
    for task_set in task_sets if len(task_sets) > 1 else ():
        own = [group for group in groups if group.task_set == task_set]
        numbers = _numbers(own, [one for one in ended if one.group.task_set == task_set])
        metrics |= {f"{name}/{task_set}": value for name, value in numbers.items()}
        metrics |= _parts(own, f"reward/parts_of/{task_set}")
    return metrics


def _numbers(groups: Sequence[Group], ended: Sequence[Ended]) -> dict[str, float]:
    """Without groups there is no mean. `reward/drawn` also counts what was filtered."""
    filtered = [one.group for one in ended if one.status is GroupStatus.FILTERED]
    numbers = {
        "groups/trained": float(len(groups)),
        "groups/failed": float(sum(one.status is GroupStatus.FAILED for one in ended)),
        "groups/filtered": float(len(filtered)),
    }
    if rewards := _rewards(groups):
        numbers |= {"reward/mean": statistics.fmean(rewards), "reward/std": statistics.pstdev(rewards)}
    if drawn := _rewards([*groups, *filtered]):
        numbers["reward/drawn"] = statistics.fmean(drawn)
        numbers["groups/filtered_share"] = len(filtered) / (len(groups) + len(filtered))
    if episodes := [rollout.episode for group in groups for rollout in group.rollouts if rollout.episode]:
        numbers["response/tokens"] = statistics.fmean(episode.sampled_tokens for episode in episodes)
        numbers["response/truncated"] = statistics.fmean(episode.stop is StopReason.BUDGET for episode in episodes)
    return numbers


def _parts(groups: Iterable[Group], prefix: str) -> dict[str, float]:
    """The mean of each named part of the rewards, over the rollouts that have it; its name begins with `prefix`."""
    values: dict[str, list[float]] = {}
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        for name, value in rollout.reward.parts.items() if isinstance(rollout.reward, Scored) else ():
            values.setdefault(name, []).append(value)
    return {f"{prefix}/{name}": statistics.fmean(values[name]) for name in sorted(values)}


def _rewards(groups: Iterable[Group]) -> list[float]:
    return [reward for group in groups for reward in group.rewards]
