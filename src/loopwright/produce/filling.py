"""From a drawn group to its members: run what is missing, judge what is not judged, and store all of it.

An episode is stored no later than its score (D1): a run that dies while a judge is at work, or has failed, finds the
episode again, and only the judge is asked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loopwright.core.together import together
from loopwright.ports import GroupJudger, Storage
from loopwright.produce.draws import Started
from loopwright.produce.runner import Job, RolloutRunner, TaskSetRuntime
from loopwright.types import Rollout, RolloutKey, Scored


class Filling:
    """Fills groups. `samples` is how many members a group gets, `least` how many scores it needs to be of use.

    `saw` is told of every attempt once it has a reward, or has failed.
    """

    def __init__(
        self, runner: RolloutRunner, storage: Storage, samples: int, least: int, saw: Callable[[Rollout], None]
    ) -> None:
        self._runner = runner
        self._storage = storage
        self._samples = samples
        self._least = least
        self._saw = saw

    async def fill(self, groups: Sequence[tuple[Started, TaskSetRuntime]]) -> None:
        """Run the groups' missing members, all at once, and judge them."""
        shelf = _Shelf(self._storage, [started for started, _ in groups], self._saw)
        jobs = [job for started, task_set in groups for job in self._jobs(started, task_set)]
        made = await self._runner.run(jobs, shelf.put, shelf.put_unscored)
        await together(
            self._judge_group(latest_of(started, made), task_set.judger, shelf)
            for started, task_set in groups
            if isinstance(task_set.judger, GroupJudger)
        )

    def _jobs(self, group: Started, task_set: TaskSetRuntime) -> list[Job]:
        """One job for each member that is missing, or that failed and may still be scored."""
        row = group.row
        stored = {rollout.key.member: rollout for rollout in group.stored}
        jobs = []
        for member in range(self._samples):
            if member not in stored:
                jobs.append(Job(RolloutKey(row.task_set, row.draw, member), row.task, task_set))
            elif self._runner.worth_another(stored[member]):
                jobs.append(Job(stored[member].key, row.task, task_set).again())
            elif stored[member].awaits_judge and not isinstance(task_set.judger, GroupJudger):
                jobs.append(Job(stored[member].key, row.task, task_set, judge_only=stored[member]))
        return jobs

    async def _judge_group(self, members: Sequence[Rollout], judger: GroupJudger, shelf: _Shelf) -> None:
        """Judge those that have no score yet, if that can be of use."""
        waiting = [member for member in members if member.awaits_judge]
        scored = sum(isinstance(member.reward, Scored) for member in members)
        if waiting and len(waiting) + scored >= self._least:
            await shelf.put_rewards(await self._runner.judge_group(waiting, judger))


class _Shelf:
    """Storage for the rollouts of some groups. It knows which of them are stored already, and lack only a reward."""

    def __init__(self, storage: Storage, groups: Sequence[Started], saw: Callable[[Rollout], None]) -> None:
        self._storage = storage
        self._rows = {(group.row.task_set, group.row.draw): group.row for group in groups}
        self._stored = {rollout.key for group in groups for rollout in group.stored}
        self._saw = saw

    async def put(self, rollout: Rollout) -> None:
        """Keep a rollout that is through."""
        if rollout.key in self._stored:
            await self.put_rewards([rollout])
        else:
            await self.put_unscored(rollout)
            self._saw(rollout)

    async def put_unscored(self, rollout: Rollout) -> None:
        await self._storage.put(self._rows[rollout.key.task_set, rollout.key.draw], rollout)
        self._stored.add(rollout.key)

    async def put_rewards(self, rollouts: Sequence[Rollout]) -> None:
        """Keep the rewards of rollouts of one group, all or none: half a ranking is worth nothing."""
        key = rollouts[0].key
        await self._storage.put_rewards(self._rows[key.task_set, key.draw], rollouts)
        for rollout in rollouts:
            self._saw(rollout)


def latest_of(group: Started, attempts: Sequence[Rollout]) -> list[Rollout]:
    """The latest word on each member of a group, in member order."""
    own = (r for r in attempts if (r.key.task_set, r.key.draw) == (group.row.task_set, group.row.draw))
    latest = {rollout.key.member: rollout for rollout in sorted((*group.stored, *own), key=lambda r: r.key)}
    return list(latest.values())
