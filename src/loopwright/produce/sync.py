"""The synchronous producer: one batch of groups per train step, all sampled before the step begins.

Every rollout is stored the moment it ends (D1), and every drawn group ends COMPLETED or FAILED (R3). A member that
fails is tried again; a group that cannot be filled is replaced by another draw, within a failure budget (R4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loopwright.core.allocation import shares_of_step
from loopwright.ports import ResumePlan, Storage
from loopwright.produce.batch import Batch, batch_metrics
from loopwright.produce.draws import FRESH, Draws, Started
from loopwright.produce.failures import FailureLedger, FirstFailures
from loopwright.produce.runner import Job, RolloutRunner, TaskSetRuntime
from loopwright.types import Failed, FailureCause, Group, GroupStatus, Rollout, RolloutKey, Scored


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """Sizes, and how much failure is borne. `min_members` None means all of them."""

    groups_per_step: int
    samples_per_task: int
    min_members: int | None = None
    failure_budget: int = 16


class _Line:
    """One task set with its draws and its failures."""

    def __init__(self, task_set: TaskSetRuntime, storage: Storage, plan: ResumePlan, budget: int) -> None:
        self.task_set = task_set
        self.draws = Draws(task_set.name, task_set.sampler, storage, plan)
        self.failures = FailureLedger(task_set.name, task_set.judger.name, budget)


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
            _Line(task_set, storage, left_over.get(task_set.name, FRESH), settings.failure_budget)
            for task_set in task_sets
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

    async def produce_batch(self, step: int, version: int) -> Batch:
        """The groups of train step `step`, sampled by weights `version`."""
        shares = shares_of_step(step, self._settings.groups_per_step, [line.task_set.weight for line in self._lines])
        groups = {
            line.task_set.name: line.draws.take_completed(share)
            for line, share in zip(self._lines, shares, strict=True)
        }
        attempts: list[Rollout] = []
        failed = 0
        while missing := self._missing(shares, groups):
            started = [await line.draws.start(version) for line in missing]
            await self._fill(started, attempts)
            completed = await self._settle(started, attempts, step)
            failed += len(started) - len(completed)
            for group in completed:
                groups[group.task_set].append(group)
        batch = tuple(group for made in groups.values() for group in sorted(made, key=lambda group: group.draw))
        return Batch(batch, batch_metrics(batch, attempts, failed))

    async def consume(self, groups: Sequence[Group], step: int) -> None:
        """Record that `groups` were trained at `step`."""
        await self._storage.mark([(group.task_set, group.draw) for group in groups], GroupStatus.CONSUMED, step)

    def _missing(self, shares: Sequence[int], groups: Mapping[str, Sequence[Group]]) -> list[_Line]:
        """Each task set as often as it still owes a group, in order."""
        return [
            line
            for line, share in zip(self._lines, shares, strict=True)
            for _ in range(share - len(groups[line.task_set.name]))
        ]

    async def _fill(self, started: Sequence[Started], attempts: list[Rollout]) -> None:
        """Run the groups' missing members, all at once; every attempt is stored, and added to `attempts`."""
        rows = {(group.row.task_set, group.row.draw): group.row for group in started}

        async def keep(rollout: Rollout) -> None:
            await self._storage.put(rows[rollout.key.task_set, rollout.key.draw], rollout)
            attempts.append(rollout)
            self._first_failures.saw(rollout)
            if self._on_rollout is not None:
                self._on_rollout(rollout)

        await self._runner.run([job for group in started for job in self._jobs(group)], keep)

    def _jobs(self, group: Started) -> list[Job]:
        """One job for each member that is missing, or that failed and may still be scored."""
        row = group.row
        task_set = self._by_name[row.task_set].task_set
        stored = {rollout.key.member: rollout for rollout in group.stored}
        jobs = []
        for member in range(self._settings.samples_per_task):
            if member not in stored:
                jobs.append(Job(RolloutKey(row.task_set, row.draw, member), row.task, task_set))
            elif self._runner.worth_another(stored[member]):
                jobs.append(Job(stored[member].key, row.task, task_set).again())
            elif _judge_failed(stored[member]):
                jobs.append(Job(stored[member].key, row.task, task_set, judge_only=stored[member]).again())
        return jobs

    async def _settle(self, started: Sequence[Started], attempts: Sequence[Rollout], step: int) -> list[Group]:
        """Mark every group COMPLETED or FAILED, and return the completed ones."""
        completed: list[Group] = []
        failed: list[tuple[str, int]] = []
        for group in started:
            scored = tuple(member for member in _members(group, attempts) if isinstance(member.reward, Scored))
            if len(scored) >= (self._settings.min_members or self._settings.samples_per_task):
                completed.append(Group(group.row.task_set, group.row.draw, group.row.task, scored))
            else:
                failed.append((group.row.task_set, group.row.draw))
        await self._storage.mark([(group.task_set, group.draw) for group in completed], GroupStatus.COMPLETED)
        await self._storage.mark(failed, GroupStatus.FAILED)
        # Counted only when all are marked: a spent budget stops the run, and must leave no group pending.
        for group in started:
            failures = self._by_name[group.row.task_set].failures
            if (group.row.task_set, group.row.draw) in failed:
                failures.group_failed(_members(group, attempts), step)
            else:
                failures.group_completed()
        return completed


def _judge_failed(rollout: Rollout) -> bool:
    return isinstance(rollout.reward, Failed) and rollout.reward.cause is FailureCause.JUDGE


def _members(group: Started, attempts: Sequence[Rollout]) -> list[Rollout]:
    """The latest attempt at each member, in member order."""
    own = (r for r in attempts if (r.key.task_set, r.key.draw) == (group.row.task_set, group.row.draw))
    latest = {rollout.key.member: rollout for rollout in sorted((*group.stored, *own), key=lambda r: r.key)}
    return list(latest.values())
