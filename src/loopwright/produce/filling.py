"""From a drawn group to its members: run what is missing, judge what is not judged, and store all of it.

An episode is stored no later than its score (D1): a run that dies while a judge is at work, or has failed, finds the
episode again, and only the judge is asked once more. One that was interrupted is stored as far as it got.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loopwright.core.together import together
from loopwright.ports import GroupJudger, ReplayBuffer, Started
from loopwright.produce.jobs import Job, TaskSetRuntime
from loopwright.produce.runner import RolloutRunner
from loopwright.produce.slots import Slots
from loopwright.types import Rollout, RolloutKey, Scored

Groups = Sequence[tuple[Started, TaskSetRuntime]]

_Member = tuple[str, int, int]
"""Task set, draw and member."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A group with the latest word on each of its members, in their order.

    When it `was_interrupted`, some of them are partial, or could not be started.
    """

    started: Started
    members: tuple[Rollout, ...]
    was_interrupted: bool


class Filling:
    """Fills groups. `samples` is how many members a group gets, `least` how many scores it needs to be of use.

    `saw` is told of every attempt once it has a reward, or has failed.
    """

    def __init__(
        self,
        runner: RolloutRunner,
        slots: Slots,
        buffer: ReplayBuffer,
        *,
        samples: int,
        least: int,
        saw: Callable[[Rollout], None],
    ) -> None:
        self._runner = runner
        self._slots = slots
        self._buffer = buffer
        self._samples = samples
        self._least = least
        self._saw = saw

    def agents(self, group: Started, task_set: TaskSetRuntime) -> int:
        """How many agents it takes to fill the group."""
        return sum(job.judge_only is None for job in self._jobs(group, task_set))

    async def fill(self, groups: Groups) -> list[Filled]:
        """Run the groups' missing members, all at once, and judge them."""
        shelf = _Shelf(self._buffer, [started for started, _ in groups], self._saw)
        jobs = [self._jobs(started, task_set) for started, task_set in groups]
        made = await self._runner.run([job for own in jobs for job in own], shelf.put, shelf.put_unscored, self._slots)
        latest = {(rollout.key.task_set, rollout.key.draw, rollout.key.member): rollout for rollout in made}
        return await together(
            self._finish(_filled(started, own, latest), task_set, shelf)
            for (started, task_set), own in zip(groups, jobs, strict=True)
        )

    def _jobs(self, group: Started, task_set: TaskSetRuntime) -> list[Job]:
        """One job for each member that is missing, interrupted, or that failed and may still be scored."""
        row = group.row
        stored = {rollout.key.member: rollout for rollout in group.stored}
        jobs = []
        for member in range(self._samples):
            made, first = stored.get(member), group.first_attempts.get(member, 0)
            key = made.key if made else RolloutKey(row.task_set, row.draw, member, first)
            job = Job(key, row.task, task_set, first_attempt=first)
            if made is None:
                jobs.append(job)
            elif made.is_partial:
                jobs.append(replace(job, resume_from=made if task_set.resumable else None))
            elif self._runner.worth_another(made, first):
                jobs.append(job.again())
            elif made.awaits_judge and task_set.own_judger is not None:
                jobs.append(replace(job, judge_only=made))
        return jobs

    async def _finish(self, filled: Filled, task_set: TaskSetRuntime, shelf: _Shelf) -> Filled:
        """Judge the members together, if that is how it is done and can be of use."""
        waiting = [member for member in filled.members if member.awaits_judge]
        scored = [member for member in filled.members if isinstance(member.reward, Scored)]
        enough = bool(waiting) and len(waiting) + len(scored) >= self._least
        if not isinstance(task_set.judger, GroupJudger) or filled.was_interrupted or not enough:
            return filled
        judged = await self._runner.judge_group(waiting, task_set.judger)
        await shelf.put_rewards(judged)
        others = [member for member in filled.members if not member.awaits_judge]
        members = sorted((*others, *judged), key=lambda member: member.key.member)
        return Filled(filled.started, tuple(members), was_interrupted=False)


class _Shelf:
    """Where the rollouts of some groups are kept. It knows which of them are there already, and lack only a reward."""

    def __init__(self, buffer: ReplayBuffer, groups: Sequence[Started], saw: Callable[[Rollout], None]) -> None:
        self._buffer = buffer
        self._rows = {(group.row.task_set, group.row.draw): group.row for group in groups}
        self._stored = {rollout.key for group in groups for rollout in group.stored if not rollout.is_partial}
        self._saw = saw

    async def put(self, rollout: Rollout) -> None:
        """Keep a rollout that is through."""
        if rollout.key in self._stored:
            await self.put_rewards([rollout])
        else:
            await self.put_unscored(rollout)
            self._saw(rollout)

    async def put_unscored(self, rollout: Rollout) -> None:
        await self._buffer.put(self._rows[rollout.key.task_set, rollout.key.draw], rollout)
        self._stored.add(rollout.key)

    async def put_rewards(self, rollouts: Sequence[Rollout]) -> None:
        """Keep the rewards of rollouts of one group, all or none: half a ranking is worth nothing."""
        key = rollouts[0].key
        await self._buffer.put_rewards(self._rows[key.task_set, key.draw], rollouts)
        for rollout in rollouts:
            self._saw(rollout)


def _filled(group: Started, jobs: Sequence[Job], made: dict[_Member, Rollout]) -> Filled:
    """What has become of a group whose `jobs` were run."""
    row = group.row
    latest = {rollout.key.member: rollout for rollout in group.stored}
    own = {job.key.member: made.get((row.task_set, row.draw, job.key.member)) for job in jobs}
    latest |= {member: rollout for member, rollout in own.items() if rollout is not None}
    was_interrupted = None in own.values() or any(rollout.is_partial for rollout in latest.values())
    return Filled(group, tuple(latest[member] for member in sorted(latest)), was_interrupted)
