"""A batch of groups for one train step, and the numbers of production since the batch before."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loopwright.produce.group_filler import EndedGroup
from loopwright.produce.slots import Slots
from loopwright.types import ChainStart, Episode, Failed, FailureCause, Group, GroupStatus, Rollout, Scored, StopReason

Stock = Mapping[GroupStatus, int]

FORKS = tuple(start for start in ChainStart if start is not ChainStart.FIRST)
"""The reasons for a chain after the first."""


@dataclass(slots=True)
class Tally:
    """Counts of production. `rewards` are those of all scored groups, before any filter; `seconds` is how long each
    group took."""

    statuses: Counter[GroupStatus] = field(default_factory=Counter)
    causes: Counter[FailureCause] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def saw(self, rollout: Rollout) -> None:
        """Count an attempt that was scored or failed."""
        if isinstance(rollout.reward, Failed):
            self.causes[rollout.reward.cause] += 1

    def ended(self, one: EndedGroup) -> None:
        self.statuses[one.status] += 1
        # Count failures of the filter, which concern a whole group. Failures of rollouts were counted by `saw`.
        self.causes.update(failed.cause for failed in one.failures if failed.cause is FailureCause.FILTER)
        if one.status in (GroupStatus.COMPLETED, GroupStatus.FILTERED):
            self.rewards.extend(one.group.rewards)
        if one.status is not GroupStatus.ABORTED:
            self.seconds.append(one.seconds)


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """The tally of several task sets together."""
    total = Tally()
    for tally in tallies:
        total.statuses += tally.statuses
        total.causes += tally.causes
        total.rewards += tally.rewards
        total.seconds += tally.seconds
    return total


class SlotMeter:
    """Measures, from one batch to the next, how long slots were idle and production was paused."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._since: float | None = None
        self._busy_before = 0.0
        self._paused_at: float | None = None
        self._paused_seconds = 0.0

    def start(self) -> None:
        """Start measuring, unless it has started already."""
        if self._since is None:
            self._since, self._busy_before = _now(), self._slots.busy_seconds()

    def pause(self) -> None:
        if self._paused_at is None:
            self._paused_at = _now()

    def go_on(self) -> None:
        if self._paused_at is not None:
            self._paused_seconds += _now() - self._paused_at
            self._paused_at = None

    def read(self) -> dict[str, float]:
        """The numbers since the last reading."""
        if self._paused_at is not None:
            self.go_on()
            self.pause()
        now, busy = _now(), self._slots.busy_seconds()
        numbers = {"time/paused": self._paused_seconds}
        if self._since is not None and now > self._since:
            numbers["slots/idle"] = 1 - (busy - self._busy_before) / ((now - self._since) * self._slots.size)
        self._since, self._busy_before, self._paused_seconds = now, busy, 0.0
        return numbers


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups in order of task set and draw. `metrics` are plain numbers, ready for a tracker."""

    groups: tuple[Group, ...]
    metrics: Mapping[str, float]

    @property
    def is_empty(self) -> bool:
        """Whether newer weights must be loaded before there can be a batch."""
        return not self.groups


EMPTY = Batch((), {})


def batch_metrics(
    groups: Sequence[Group], tallies: Mapping[str, Tally], stocks: Mapping[str, Stock]
) -> dict[str, float]:
    """Rewards and lengths of the trained groups, how all groups and attempts since the last batch ended, and how many
    groups are left.

    With several task sets, the numbers of each follow under its name: `reward/mean/<task set>`. Names of parts may
    contain slashes, so they have a prefix of their own: `reward/parts_of/<task set>/<part>`.
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
    """The numbers of one task set, or of all. Without groups there are no means. `reward/drawn` includes filtered
    groups."""
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
        numbers |= _recording_numbers(episodes)
        numbers |= _program_numbers(episodes)
    return numbers


def _parts(groups: Iterable[Group], prefix: str) -> dict[str, float]:
    """The mean of each named part of the rewards, over the rollouts that have it; its name begins with `prefix`."""
    values: dict[str, list[float]] = {}
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        for name, value in rollout.reward.parts.items() if isinstance(rollout.reward, Scored) else ():
            values.setdefault(name, []).append(value)
    return {f"{prefix}/{name}": statistics.fmean(values[name]) for name in sorted(values)}


def _program_numbers(episodes: Iterable[Episode]) -> dict[str, float]:
    """How long agents that are programs took to their first model call, and from there to their end."""
    outputs = [episode.output for episode in episodes if episode.output is not None]
    if not outputs:
        return {}
    return {
        "time/program_start": statistics.fmean(output.start_seconds for output in outputs),
        "time/program_run": statistics.fmean(output.run_seconds for output in outputs),
    }


def _recording_numbers(episodes: Iterable[Episode]) -> dict[str, float]:
    """Sums over the episodes whose drift was measured: those of agents that talk to the gateway. Empty if there are
    none."""
    measured = [episode for episode in episodes if episode.drift is not None]
    if not measured:
        return {}
    chains = [chain for episode in measured for chain in episode.chains]
    starts = Counter(chain.start for chain in chains)
    drifts = [episode.drift for episode in measured if episode.drift is not None]
    return {
        "chains/recorded": float(len(chains)),
        "chains/trained": float(sum(chain.trained for chain in chains)),
        **{f"chains/forks_{start}": float(starts[start]) for start in FORKS},
        "drift/tokens": float(sum(drift.tokens for drift in drifts)),
        "drift/wrong": float(sum(drift.wrong for drift in drifts)),
    }
