"""The replay buffer: holds groups between production and training, over any storage.

Only the buffer decides which status a group may get next. A group is handed out once, is written to only while it is
PENDING, and is never dropped because of its age (R5). The storage is the truth. The counts here follow it: a change is
counted when it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from loopwright.buffer.fresh import Fresh
from loopwright.buffer.shelf import Holding, Shelf
from loopwright.core.constrained import without_constrained
from loopwright.core.staleness import is_too_old, without_stale
from loopwright.core.together import to_its_end
from loopwright.errors import RunError
from loopwright.ports import GroupRow, ResumePlan, StalePolicy, StartedGroup, Storage
from loopwright.types import Group, GroupStatus, Rollout, Scored, Stale, Task, TrainedRollout

SETTLED = frozenset({GroupStatus.COMPLETED, GroupStatus.FILTERED, GroupStatus.FAILED, GroupStatus.ABORTED})
GOES_ON = frozenset({GroupStatus.EXPIRED, GroupStatus.ABORTED})


class StoredBuffer:
    """The replay buffer over an empty storage or, with `resume`, over the storage of an earlier run."""

    def __init__(self, storage: Storage, policy: StalePolicy) -> None:
        self._storage = storage
        self._policy = policy
        self._fresh = Fresh()
        self._shelves: dict[str, Shelf] = {}
        self._taken: set[tuple[str, int]] = set()
        self._masked = 0
        self._constrained = 0
        self._due_step = 0

    @staticmethod
    async def resume(
        storage: Storage,
        policy: StalePolicy,
        task_sets: Sequence[str],
        *,
        step: int = 0,
        next_draws: Mapping[str, int] | None = None,
    ) -> tuple[StoredBuffer, Mapping[str, ResumePlan]]:
        """The buffer of a run that continues from checkpoint `step`, and what is left to draw (see
        `Storage.resume`)."""
        plans = await storage.resume(task_sets, step=step, next_draws=next_draws, policy=policy)
        counts = await storage.counts()
        buffer = StoredBuffer(storage, policy)
        for name, plan in plans.items():
            shelf = buffer._shelves[name] = Shelf(counts.get(name, {}))
            for held in plan.held:
                shelf.hold(Holding.of(held))
        return buffer, plans

    @property
    def masked_tokens(self) -> int:
        return self._masked

    @property
    def constrained_tokens(self) -> int:
        return self._constrained

    def count(self, task_set: str, status: GroupStatus) -> int:
        return self._shelf(task_set).counts[status]

    def ready(self, task_set: str, step: int) -> int:
        if self._must_wait(step):
            return 0
        shelf = self._shelf(task_set)
        # Take them in the order of their age. Otherwise groups of several steps could all have to be trained at the
        # same last step.
        upto = shelf.oldest_pending if self._policy.stale is Stale.WAIT else None
        return shelf.waiting(GroupStatus.COMPLETED, upto)

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> StartedGroup:
        row = await self._storage.draw(task_set, draw, task, version)
        self._shelf(task_set).add(Holding(row, version))
        return StartedGroup(row)

    async def take_up(self, task_set: str, status: GroupStatus, version: int) -> StartedGroup | None:
        if status not in GOES_ON:
            raise RunError(f"a group that is {status.value} does not go on", remedy="take up expired or aborted groups")
        shelf = self._shelf(task_set)
        if not shelf.waiting(status):
            return None
        group = shelf.pop(status)
        try:
            row = await self._storage.take_up(group.row, version)
            stored = await self._storage.rollouts_of(task_set, row.draw) if group.in_time else ()
        except BaseException:
            shelf.put_back(group)
            raise
        group.since = version
        shelf.move(group, GroupStatus.PENDING)
        return StartedGroup(row, stored, group.first_attempts)

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        group = self._pending(row)
        try:
            await self._storage.put(row, rollout)
        except asyncio.CancelledError:
            # The storage stores it all the same, and the group may go on later: its member must not be made again.
            self._shelf(row.task_set).put(group, rollout)
            raise
        self._shelf(row.task_set).put(group, rollout)
        self._fresh.put(rollout)

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        group = self._pending(row)
        await self._storage.put_rewards(row, rollouts)
        for rollout in rollouts:
            self._shelf(row.task_set).put(group, rollout)
            self._fresh.put(rollout)

    async def settle(self, row: GroupRow, status: GroupStatus, why: str | None = None) -> None:
        if status not in SETTLED:
            raise RunError(
                f"a group cannot be settled as {status.value}", remedy="say how it ended, or that it was aborted"
            )
        group = self._pending(row)
        await self._storage.mark([(row.task_set, row.draw)], status, why)
        self._shelf(row.task_set).move(group, status)
        if status is GroupStatus.COMPLETED:
            # The group may have become too old while it was made.
            await self.expire(self._due_step)
        else:
            # Also forget interrupted groups: the storage may hold more of them than was reported here.
            self._fresh.pop(row.task_set, row.draw, {})

    async def expire(self, step: int) -> None:
        self._due_step = max(self._due_step, step)
        due = {name: self._pop_expiring(shelf, step) for name, shelf in self._shelves.items()}
        if any(due.values()):
            # Run this to its end: the storage commits it even if the caller is gone, and no group may expire twice.
            await to_its_end(self._let_expire(due))

    async def take(self, step: int, wanted: Mapping[str, int]) -> tuple[Group, ...]:
        for name, count in wanted.items():
            if count > (ready := self.ready(name, step)):
                raise RunError(
                    f"{count} groups of task set {name!r} were asked for at step {step}, and {ready} are ready",
                    remedy="take no more than `ready` says",
                )
        claimed = {
            name: [self._shelf(name).pop(GroupStatus.COMPLETED) for _ in range(count)] for name, count in wanted.items()
        }
        try:
            groups = [await self._read(group, step) for holdings in claimed.values() for group in holdings]
        except BaseException:
            self._put_back(claimed)
            raise
        for name, holdings in claimed.items():
            for holding in holdings:
                self._taken.add((name, holding.row.draw))
                self._shelves[name].move(holding, GroupStatus.CONSUMED)
        self._masked += sum(masked for _, masked, _ in groups)
        self._constrained += sum(constrained for _, _, constrained in groups)
        return tuple(group for group, _, _ in groups)

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        names = [(group.task_set, group.draw) for group in groups]
        for name in names:
            if name not in self._taken:
                raise RunError(
                    f"draw {name[1]} of task set {name[0]!r} was not taken, or is consumed already",
                    remedy="consume each group once, after `take` has given it out",
                )
        await self._storage.consume(groups, step, trained)
        self._taken.difference_update(names)

    def _shelf(self, task_set: str) -> Shelf:
        if task_set not in self._shelves:
            self._shelves[task_set] = Shelf({})
        return self._shelves[task_set]

    def _pending(self, row: GroupRow) -> Holding:
        group = self._shelf(row.task_set).get(row.draw)
        if group is None or (group.row.round, group.row.status) != (row.round, GroupStatus.PENDING):
            raise RunError(
                f"draw {row.draw} of task set {row.task_set!r} is not under way",
                remedy="store and settle a group after `draw` or `take_up` has given it out, and settle it once",
            )
        return group

    def _must_wait(self, step: int) -> bool:
        """Whether `step` must wait for an unfinished group, because it is the last step that can train it."""
        horizon = self._policy.horizon
        if self._policy.stale is not Stale.WAIT or horizon is None:
            return False
        bounds = (shelf.oldest_pending for shelf in self._shelves.values())
        return any(bound is not None and bound + horizon <= step for bound in bounds)

    def _pop_expiring(self, shelf: Shelf, step: int) -> list[Holding]:
        """The completed groups that are too old for `step` and may be made again."""
        if self._policy.stale is not Stale.RETRY:
            return []
        too_old = []
        while (age := shelf.next_age(GroupStatus.COMPLETED)) is not None:
            if not is_too_old(age, step, self._policy.horizon):
                break
            too_old.append(shelf.pop(GroupStatus.COMPLETED))
        # Groups that may not expire again go back and are masked later. They are taken next, so there are few of them.
        for group in too_old:
            if group.row.expiries >= self._policy.max_expiries:
                shelf.put_back(group)
        return [group for group in too_old if group.row.expiries < self._policy.max_expiries]

    async def _let_expire(self, due: Mapping[str, Sequence[Holding]]) -> None:
        named = [(name, group.row.draw) for name, groups in due.items() for group in groups]
        try:
            await self._storage.mark(named, GroupStatus.EXPIRED)
        except BaseException:
            self._put_back(due)
            raise
        for name, groups in due.items():
            for group in groups:
                self._shelves[name].move(group, GroupStatus.EXPIRED)
                self._fresh.pop(name, group.row.draw, {})

    def _put_back(self, popped: Mapping[str, Sequence[Holding]]) -> None:
        for name, groups in popped.items():
            for group in groups:
                self._shelves[name].put_back(group)

    async def _read(self, group: Holding, step: int) -> tuple[Group, int, int]:
        """The group as it is trained, and how many of its tokens are too old and how many are constrained."""
        row = group.row
        attempts = {member.member: member.attempt for member in group.in_time}
        members = self._fresh.pop(row.task_set, row.draw, attempts)
        if not members:
            members = await self._storage.rollouts_of(row.task_set, row.draw)
        scored = tuple(member for member in members if isinstance(member.reward, Scored))
        free, constrained = without_constrained(Group(row.task_set, row.draw, row.task, scored))
        fresh, masked = without_stale(free, step, self._policy.horizon)
        return fresh, masked, constrained
