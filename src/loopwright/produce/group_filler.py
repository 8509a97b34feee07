"""Fills a drawn group, from its start to its final status.

The filler runs missing members, has episodes without a score judged, and stores all of it. An episode is stored no
later than its score (D1): a run that dies while a judger works finds the episode again, and asks only the judger.
A group ends in exactly one status: COMPLETED, FILTERED, FAILED or, when it was interrupted, ABORTED (R3).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loopwright.core.together import to_its_end, together
from loopwright.ports import GroupRow, ReplayBuffer, StartedGroup
from loopwright.produce.filtering import Filter
from loopwright.produce.rollouts import Job, RolloutRunner
from loopwright.produce.settings import TaskSetRuntime
from loopwright.produce.slots import Slots
from loopwright.types import Failed, Group, GroupStatus, Rollout, RolloutKey, Scored

Groups = Sequence[tuple[StartedGroup, TaskSetRuntime]]


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """A group that has ended. `failures` says why it failed, `filtered_by` which filter dropped it; `seconds` is how
    long it took."""

    group: Group
    status: GroupStatus
    failures: tuple[Failed, ...] = ()
    seconds: float = 0.0
    filtered_by: str | None = None

    @property
    def why(self) -> str | None:
        """Why it is not trained, for people."""
        if self.filtered_by is not None:
            rewards = sorted(set(self.group.rewards))
            told = f"every reward is {rewards[0]:g}" if len(rewards) == 1 else f"{len(rewards)} different rewards"
            return f"dropped by the filter {self.filtered_by}: {told}"
        kinds = Counter(f"{failure.cause} {failure.error}" for failure in self.failures)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common()) or None


@dataclass(frozen=True, slots=True)
class _Filled:
    """A group with the latest attempt of each member, in their order.

    If it `was_interrupted`, some members are partial or were not started.
    """

    row: GroupRow
    members: tuple[Rollout, ...]
    was_interrupted: bool


class GroupFiller:
    """Fills groups and settles them. `samples` is how many members a group gets, `least` how many scores it needs.

    `saw` is called with every attempt once it has a reward or has failed.
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
        self._unsettled: dict[tuple[str, int], GroupRow] = {}
        """Groups that were drawn and are not settled."""

    def agents(self, groups: Groups) -> int:
        """How many agents must run to fill the groups."""
        jobs = (job for started, task_set in groups for job in self._jobs(started, task_set))
        return sum(job.judge_only is None for job in jobs)

    def own(self, row: GroupRow) -> None:
        """Take charge of a group when it is drawn: from now on the filler makes sure that it is settled."""
        self._unsettled[row.task_set, row.draw] = row

    async def give_back(self) -> None:
        """Settle as ABORTED the groups whose filling was cancelled, crashed or never began. They continue later from
        what is stored. The scheduler must call this: a task that is cancelled before its first step cannot clean up
        itself."""
        while self._unsettled:
            _, row = self._unsettled.popitem()
            await self._buffer.settle(row, GroupStatus.ABORTED)

    async def fill(self, groups: Groups) -> list[EndedGroup]:
        """Fill and settle the groups: one, or all those that a lockstep engine must see together."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        store = _MemberStore(self._buffer, [started for started, _ in groups], self._saw)
        jobs = [self._jobs(started, task_set) for started, task_set in groups]
        in_one_row = [job for own in jobs for job in own]
        made = iter(await self._runner.run(in_one_row, store.put, store.put_unscored, self._slots))
        filled = [_filled(started, [next(made) for _ in own]) for (started, _), own in zip(groups, jobs, strict=True)]
        ended = await together(
            self._end(one, task_set, store) for one, (_, task_set) in zip(filled, groups, strict=True)
        )
        await together(self._settle(started.row, one) for one, (started, _) in zip(ended, groups, strict=True))
        return [replace(one, seconds=clock() - begun) for one in ended]

    def _jobs(self, group: StartedGroup, task_set: TaskSetRuntime) -> list[Job]:
        """One job for each member that is missing, interrupted, or that failed and may still be scored."""
        row = group.row
        stored = {rollout.key.member: rollout for rollout in group.stored}
        jobs = []
        for member in range(self._samples):
            made, first = stored.get(member), group.first_attempts.get(member, 0)
            key = made.key if made else RolloutKey(row.task_set, row.draw, member, first)
            job = Job(key, row.task, task_set.sampling, task_set.judger, first_attempt=first)
            if made is None:
                jobs.append(job)
            elif made.is_partial:
                jobs.append(replace(job, resume_from=made))
            elif self._runner.worth_another(made, first):
                jobs.append(job.again())
            elif made.awaits_judge and not task_set.judger.judges_groups:
                jobs.append(replace(job, judge_only=made))
        return jobs

    async def _end(self, filled: _Filled, task_set: TaskSetRuntime, store: _MemberStore) -> EndedGroup:
        """Decide the status of a group. If its judger judges whole groups, it is asked first."""
        if task_set.judger.judges_groups and not filled.was_interrupted:
            filled = await self._judge_together(filled, task_set, store)
        row = filled.row
        scored = tuple(member for member in filled.members if isinstance(member.reward, Scored))
        group = Group(row.task_set, row.draw, row.task, scored)
        if filled.was_interrupted:
            return EndedGroup(group, GroupStatus.ABORTED)
        if len(scored) < self._least:
            failures = tuple(member.reward for member in filled.members if isinstance(member.reward, Failed))
            return EndedGroup(group, GroupStatus.FAILED, failures)
        return await _filtered(group, task_set.filter)

    async def _judge_together(self, filled: _Filled, task_set: TaskSetRuntime, store: _MemberStore) -> _Filled:
        waiting = [member for member in filled.members if member.awaits_judge]
        others = [member for member in filled.members if not member.awaits_judge]
        scored = sum(isinstance(member.reward, Scored) for member in others)
        if not waiting or len(waiting) + scored < self._least:
            return filled
        judged = await self._runner.judge_group(waiting, task_set.judger)
        await store.put_rewards(judged)
        members = sorted((*others, *judged), key=lambda member: member.key.member)
        return _Filled(filled.row, tuple(members), was_interrupted=False)

    async def _settle(self, row: GroupRow, ended: EndedGroup) -> None:
        """Settle a group. Once begun, this runs to its end: a cancelled caller must not settle the group twice."""
        del self._unsettled[row.task_set, row.draw]
        await to_its_end(self._buffer.settle(row, ended.status, ended.why))


async def _filtered(group: Group, chosen_by: Filter | None) -> EndedGroup:
    kept = chosen_by is None or await chosen_by.decide(group)
    if isinstance(kept, Failed):
        return EndedGroup(group, GroupStatus.FAILED, (kept,))
    if kept or chosen_by is None:
        return EndedGroup(group, GroupStatus.COMPLETED)
    return EndedGroup(group, GroupStatus.FILTERED, filtered_by=chosen_by.name)


class _MemberStore:
    """Stores the rollouts of some groups. It knows which of them are stored already and lack only a reward."""

    def __init__(self, buffer: ReplayBuffer, groups: Sequence[StartedGroup], saw: Callable[[Rollout], None]) -> None:
        self._buffer = buffer
        self._rows = {(group.row.task_set, group.row.draw): group.row for group in groups}
        self._stored = {rollout.key for group in groups for rollout in group.stored if not rollout.is_partial}
        self._saw = saw

    async def put(self, rollout: Rollout) -> None:
        """Store a rollout that has a reward or has failed."""
        if rollout.key in self._stored:
            await self.put_rewards([rollout])
        else:
            await self.put_unscored(rollout)
            self._saw(rollout)

    async def put_unscored(self, rollout: Rollout) -> None:
        await self._buffer.put(self._rows[rollout.key.task_set, rollout.key.draw], rollout)
        self._stored.add(rollout.key)

    async def put_rewards(self, rollouts: Sequence[Rollout]) -> None:
        """Store the rewards of rollouts of one group, all or none: half a ranking is useless."""
        key = rollouts[0].key
        await to_its_end(self._buffer.put_rewards(self._rows[key.task_set, key.draw], rollouts))
        for rollout in rollouts:
            self._saw(rollout)


def _filled(group: StartedGroup, made: Sequence[Rollout | None]) -> _Filled:
    """The group after its jobs returned the rollouts `made`. None means that the job was not started."""
    latest = {rollout.key.member: rollout for rollout in (*group.stored, *made) if rollout is not None}
    was_interrupted = None in made or any(rollout.is_partial for rollout in latest.values())
    return _Filled(group.row, tuple(latest[member] for member in sorted(latest)), was_interrupted)
