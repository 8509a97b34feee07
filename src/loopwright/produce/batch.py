"""A batch of groups for one train step, and its numbers."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loopwright.produce.recordings import recording_numbers
from loopwright.produce.tally import Tally, sum_of
from loopwright.types import FailureCause, Group, GroupStatus, Scored, StopReason

Stock = Mapping[GroupStatus, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups in order of task set and draw. `metrics` are plain numbers, ready for a tracker."""

    groups: tuple[Group, ...]
    metrics: Mapping[str, float]

    @property
    def is_empty(self) -> bool:
        """Whether newer weights have to be loaded before there can be one."""
        return not self.groups


EMPTY = Batch((), {})


def batch_metrics(
    groups: Sequence[Group], tallies: Mapping[str, Tally], stocks: Mapping[str, Stock]
) -> dict[str, float]:
    """Rewards and lengths of what is trained, what became of all the groups and attempts since the last batch, and the
    stock that is left after it.

    With several task sets, the numbers of each follow under its name: `reward/mean/<task set>`. The names of parts may
    have slashes themselves, so those stand apart: `reward/parts_of/<task set>/<part>`.
    """
    total: Counter[GroupStatus] = Counter()
    for stock in stocks.values():
        total.update(stock)
    metrics = {**_numbers(groups, sum_of(tallies.values()), total), **_parts(groups, "reward/parts")}
    for task_set in tallies if len(tallies) > 1 else ():
        own = [group for group in groups if group.task_set == task_set]
        numbers = _numbers(own, tallies[task_set], stocks[task_set])
        metrics |= {f"{name}/{task_set}": value for name, value in numbers.items()}
        metrics |= _parts(own, f"reward/parts_of/{task_set}")
    return metrics


def _numbers(groups: Sequence[Group], tally: Tally, stock: Stock) -> dict[str, float]:
    """Without groups there is no mean. `reward/drawn` also counts what was filtered."""
    filtered, completed = tally.statuses[GroupStatus.FILTERED], tally.statuses[GroupStatus.COMPLETED]
    numbers = {
        "groups/trained": float(len(groups)),
        "groups/failed": float(tally.statuses[GroupStatus.FAILED]),
        "groups/filtered": float(filtered),
        **{f"failures/{cause}": float(tally.causes[cause]) for cause in FailureCause},
        **{f"groups/left_{status}": float(count) for status, count in stock.items()},
    }
    if groups:
        numbers["groups/size"] = statistics.fmean(len(group.rollouts) for group in groups)
        numbers["groups/size_min"] = float(min(len(group.rollouts) for group in groups))
    if rewards := [reward for group in groups for reward in group.rewards]:
        numbers |= {"reward/mean": statistics.fmean(rewards), "reward/std": statistics.pstdev(rewards)}
    if tally.rewards:
        numbers["reward/drawn"] = statistics.fmean(tally.rewards)
        numbers["groups/filtered_share"] = filtered / (completed + filtered)
    if tally.seconds:
        p50, p99 = np.percentile(tally.seconds, (50, 99))
        numbers |= {"time/group": statistics.fmean(tally.seconds), "time/group_p50": p50, "time/group_p99": p99}
    if episodes := [rollout.episode for group in groups for rollout in group.rollouts if rollout.episode]:
        numbers["response/tokens"] = statistics.fmean(episode.sampled_tokens for episode in episodes)
        numbers["response/truncated"] = statistics.fmean(episode.stop is StopReason.BUDGET for episode in episodes)
        numbers |= recording_numbers(episodes)
    return numbers


def _parts(groups: Iterable[Group], prefix: str) -> dict[str, float]:
    """The mean of each named part of the rewards, over the rollouts that have it; its name begins with `prefix`."""
    values: dict[str, list[float]] = {}
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        for name, value in rollout.reward.parts.items() if isinstance(rollout.reward, Scored) else ():
            values.setdefault(name, []).append(value)
    return {f"{prefix}/{name}": statistics.fmean(values[name]) for name in sorted(values)}
