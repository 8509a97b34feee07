"""The synchronous producer: one batch of groups per train step, all sampled before the step begins.

Every rollout is stored (D1), and every drawn group ends COMPLETED, FILTERED or FAILED (R3). A member
that fails is tried again; a group that cannot be filled, or that its filter drops, is replaced by another draw, within
budgets (R4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loopwright.core.allocation import shares_of_step
from loopwright.ports import ResumePlan, Storage
from loopwright.produce.batch import Batch, batch_metrics
from loopwright.produce.draws import FRESH, Draws, Started
from loopwright.produce.failures import FailureLedger, FirstFailures
from loopwright.produce.filling import Filling, latest_of
from loopwright.produce.filtering import FilterLedger, nothing_kept
from loopwright.produce.runner import RolloutRunner, TaskSetRuntime
from loopwright.produce.settling import Ended, end_of
from loopwright.types import Group, GroupStatus, Rollout


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """Sizes, and how much failure is borne. `min_members` None means all of them."""

    groups_per_step: int
    samples_per_task: int
    min_members: int | None = None
    failure_budget: int = 16
    filter_budget: int = 256

    @property
    def least(self) -> int:
        """Scores that a group needs."""
        return self.min_members or self.samples_per_task


class _Line:
    """One task set with its draws, its failures and what was filtered."""

    def __init__(self, task_set: TaskSetRuntime, storage: Storage, plan: ResumePlan, settings: ProduceSettings) -> None:
        self.task_set = task_set
        self.draws = Draws(task_set.name, task_set.sampler, storage, plan)
        self.failures = FailureLedger(task_set.name, task_set.judger.name, settings.failure_budget)
        self.filtering = FilterLedger(task_set.name, task_set.filter, settings.filter_budget, plan.filtered)

    def count(self, ended: Ended, step: int) -> None:
        """Keep the budgets; raises when too many groups in a row have failed."""
        match ended.status:
            case GroupStatus.FAILED:
                self.failures.group_failed(ended.failures, step)
            case GroupStatus.FILTERED:
                self.failures.group_scored()
                self.filtering.filtered(ended.group)
            case _:
                self.failures.group_scored()
                self.filtering.kept()


class SyncProducer:
    """Makes batches from one or several task sets. `plans` say what a resumed run left over."""

    def __init__(
        self,
        task_sets: Sequence[TaskSetRuntime],
        runner: RolloutRunner,
        storage: Storage,
        settings: ProduceSettings,
        *,
        plans: Mapping[str, ResumePlan] | None = None,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        left_over = plans or {}
        self._lines = [
            _Line(task_set, storage, left_over.get(task_set.name, FRESH), settings) for task_set in task_sets
        ]
        self._by_name = {line.task_set.name: line for line in self._lines}
        self._runner = runner
        self._storage = storage
        self._settings = settings
        self._on_rollout = on_rollout
        self._first_failures = FirstFailures()

    @property
    def next_draws(self) -> dict[str, int]:
        """Per task set, the first draw that was never made; a checkpoint keeps it."""
        return {line.task_set.name: line.draws.next_draw for line in self._lines}

    async def produce_batch(self, step: int, version: int, size: int | None = None) -> Batch:
        """The groups of train step `step`, sampled by weights `version`; `size` of them, or `groups_per_step`."""
        size = size or self._settings.groups_per_step
        shares = shares_of_step(step, size, [line.task_set.weight for line in self._lines])
        wanted = dict(zip(self._by_name, shares, strict=True))
        groups = {name: self._by_name[name].draws.take_completed(share) for name, share in wanted.items()}
        attempts: list[Rollout] = []
        ended: list[Ended] = []
        while missing := self._missing(wanted, groups):
            started = [await line.draws.start(version) for line in missing]
            await self._fill(started, attempts)
            settled = await self._settle(started, attempts, step)
            ended += settled
            for one in settled:
                if one.status is GroupStatus.COMPLETED:
                    groups[one.group.task_set].append(one.group)
            for name, line in self._by_name.items():
                if line.filtering.is_spent:
                    wanted[name] = len(groups[name])
        batch = tuple(group for made in groups.values() for group in sorted(made, key=lambda group: group.draw))
        if not batch:
            raise nothing_kept(step, [line.filtering for line in self._lines if line.filtering.is_spent])
        return Batch(batch, batch_metrics(list(self._by_name), batch, attempts, ended))

    async def consume(self, groups: Sequence[Group], step: int) -> None:
        """Record that `groups` were trained at `step`."""
        await self._storage.mark([(group.task_set, group.draw) for group in groups], GroupStatus.CONSUMED, step)

    def _missing(self, wanted: Mapping[str, int], groups: Mapping[str, Sequence[Group]]) -> list[_Line]:
        """Each task set as often as it still owes a group, in order."""
        return [line for name, line in self._by_name.items() for _ in range(wanted[name] - len(groups[name]))]

    async def _fill(self, started: Sequence[Started], attempts: list[Rollout]) -> None:
        """Bring the groups to their members; every attempt that ends is added to `attempts`."""

        def saw(rollout: Rollout) -> None:
            attempts.append(rollout)
            self._first_failures.saw(rollout)
            if self._on_rollout is not None:
                self._on_rollout(rollout)

        filling = Filling(self._runner, self._storage, self._settings.samples_per_task, self._settings.least, saw)
        await filling.fill([(group, self._by_name[group.row.task_set].task_set) for group in started])

    async def _settle(self, started: Sequence[Started], attempts: Sequence[Rollout], step: int) -> list[Ended]:
        """Mark every group as what it has become."""
        least, lines = self._settings.least, self._by_name
        settled = [
            end_of(group.row, latest_of(group, attempts), least, lines[group.row.task_set].task_set.filter)
            for group in started
        ]
        for status in dict.fromkeys(one.status for one in settled):
            alike = [(one.group.task_set, one.group.draw) for one in settled if one.status is status]
            await self._storage.mark(alike, status)
        # Counted only when all are marked: a spent budget stops the run, and must leave no group pending.
        for one in settled:
            self._first_failures.filter_failed(one.group.task_set, one.failures)
            self._by_name[one.group.task_set].count(one, step)
        return settled
