"""How far production is: counters per task set, in groups since the run was opened. They never decrease.

The target of a step is added once, no matter how often it is asked for, and groups that were taken stay counted. So
taking a batch causes no false deficit. A group that is lost (failed, filtered, expired) causes a real deficit, and is
replaced without a special case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from loopwright.core.allocation import shares_after, shares_of_step

Counts = Mapping[str, int]
"""A number per task set."""


class ProduceProgress:
    """The counters of a run that has done train step `step`: all targets up to this step are met.

    `weights` are those of the task sets, in order; each step has `groups_per_step` groups.
    """

    def __init__(self, weights: Mapping[str, float], groups_per_step: int, *, step: int = 0) -> None:
        self._weights = dict(weights)
        self._shares = shares_after(step, groups_per_step, list(weights.values()))
        self._targets: deque[dict[str, int]] = deque([dict.fromkeys(weights, 0)])
        """The summed targets up to each step, from the last step taken to the last step planned."""
        self._consumed = dict.fromkeys(weights, 0)
        self._forgone = dict.fromkeys(weights, 0)
        """Groups that were missing in batches, because none could be found."""
        self._last_taken = step

    @property
    def next_consumer_step(self) -> int:
        """The step whose batch is taken next."""
        return self._last_taken + 1

    @property
    def producer_future_step(self) -> int:
        """The last step whose target is counted."""
        return self._last_taken + len(self._targets) - 1

    def resize(self, size: int) -> None:
        """Give the next consumer step `size` groups; no later one may be planned yet."""
        if self.producer_future_step > self.next_consumer_step:
            raise ValueError(f"steps up to {self.producer_future_step} are planned already")
        planned = len(self._targets) > 1
        if planned:
            self._targets.pop()
        else:
            next(self._shares)
        self._plan(shares_of_step(self.next_consumer_step, size, list(self._weights.values())))

    def target_upto(self, step: int) -> Counts:
        """Groups that all steps up to `step` need. For a step before the last one taken, this is the target of the last
        one taken."""
        while self.producer_future_step < step:
            self._plan(next(self._shares))
        return self._targets[max(0, step - self._last_taken)]

    def wanted(self, step: int) -> Counts:
        """Groups that are still to be taken for the steps up to `step`."""
        return {name: self.wanted_of(name, step) for name in self._weights}

    def wanted_of(self, task_set: str, step: int) -> int:
        """Groups of one task set that are still to be taken for the steps up to `step`."""
        return self.target_upto(step)[task_set] - self._consumed[task_set] - self._forgone[task_set]

    def available(self, task_set: str, completed: int) -> int:
        """What counts towards the target: groups that were taken or given up, and those that are `completed`."""
        return self._consumed[task_set] + self._forgone[task_set] + completed

    def take(self, taken: Counts) -> None:
        """Record that the batch of the next consumer step was taken. Groups that it lacks are given up."""
        for name, missing in self.wanted(self.next_consumer_step).items():
            self._consumed[name] += taken[name]
            self._forgone[name] += missing - taken[name]
        self._targets.popleft()
        self._last_taken += 1

    def _plan(self, shares: tuple[int, ...]) -> None:
        last = self._targets[-1]
        self._targets.append({name: last[name] + share for name, share in zip(self._weights, shares, strict=True)})
