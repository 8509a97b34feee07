"""The groups of one task set in memory: their statuses, their counts, and which group comes next.

Counters and heaps answer every question, so the cost does not grow with the number of groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from loopwright.ports import GroupRow, HeldGroup, MemberRow
from loopwright.types import GroupStatus, Rollout, Scored

QUEUED = (GroupStatus.COMPLETED, GroupStatus.EXPIRED, GroupStatus.ABORTED)
"""The statuses in which groups wait in a queue, the oldest first."""


@dataclass(slots=True)
class Holding:
    """A group that is still to be trained. `since` is the version of the weights that sample it now, or sampled it
    last."""

    row: GroupRow
    since: int
    members: dict[int, MemberRow] = field(default_factory=dict)

    @staticmethod
    def of(held: HeldGroup) -> Holding:
        return Holding(held.row, held.row.version, {member.member: member for member in held.members})

    def put(self, rollout: Rollout) -> None:
        key = rollout.key
        known = self.members.get(key.member)
        if known is None or key.attempt >= known.attempt:
            is_scored = isinstance(rollout.reward, Scored)
            expiries = self.row.expiries
            first = known.first if known is not None and known.expiries == expiries else key.attempt
            stored = MemberRow(key.member, key.attempt, first, expiries, rollout.oldest_version, is_scored)
            self.members[key.member] = stored

    @property
    def first_attempts(self) -> Mapping[int, int]:
        """For each member, the number of its first attempt since the group last expired, made or still to be made."""
        in_time = {stored.member: stored.first for stored in self.in_time}
        return {member: in_time.get(member, stored.attempt + 1) for member, stored in self.members.items()}

    @property
    def in_time(self) -> list[MemberRow]:
        """Members that were made since the group last expired."""
        return [member for member in self.members.values() if member.expiries == self.row.expiries]

    @property
    def age(self) -> int:
        """The version that its place in the queue depends on: that of its oldest token. A group without tokens has the
        version that was to sample it."""
        oldest = self._oldest(scored=self.row.status is GroupStatus.COMPLETED)
        return self.since if oldest is None else oldest

    @property
    def bound(self) -> int | None:
        """A lower bound for the versions of all its tokens, also of those still to be sampled. None if the group is
        finished, or if it has no tokens and is not being sampled."""
        match self.row.status:
            case GroupStatus.PENDING:
                oldest = self._oldest()
                return self.since if oldest is None else min(self.since, oldest)
            case GroupStatus.ABORTED:
                return self._oldest()
            case _:
                return None

    def _oldest(self, *, scored: bool = False) -> int | None:
        """The version of the oldest token, of all members or of those that will be trained."""
        counted = (member for member in self.in_time if member.is_scored or not scored)
        return min((member.oldest for member in counted if member.oldest is not None), default=None)


class Shelf:
    """The groups of one task set. `counts` are the storage's numbers of groups, by status."""

    def __init__(self, counts: Mapping[GroupStatus, int]) -> None:
        self.counts = Counter(counts)
        self._groups: dict[int, Holding] = {}
        self._queues = {status: _Queue() for status in QUEUED}
        self._bounds = _Bounds()

    @property
    def oldest_pending(self) -> int | None:
        """The lowest bound of a group that is PENDING or ABORTED."""
        return self._bounds.lowest

    def get(self, draw: int) -> Holding | None:
        return self._groups.get(draw)

    def hold(self, group: Holding) -> None:
        """Add a group that is already in `counts`."""
        self._groups[group.row.draw] = group
        self._bounds.set(group.row.draw, group.bound)
        if group.row.status in QUEUED:
            self.put_back(group)

    def add(self, group: Holding) -> None:
        """Add a new group."""
        self.counts[group.row.status] += 1
        self.hold(group)

    def put(self, group: Holding, rollout: Rollout) -> None:
        is_new, bound = rollout.key.member not in group.members, self._bounds.of(group.row.draw)
        group.put(rollout)
        oldest = rollout.oldest_version
        # One more member can only lower the bound. Looking at all members each time would cost quadratic time.
        if not is_new or bound is None or (oldest is not None and oldest < bound):
            self._bounds.set(group.row.draw, group.bound)

    def move(self, group: Holding, status: GroupStatus) -> None:
        """Give a new status to a group that is PENDING, or that `pop` returned."""
        self.counts[group.row.status] -= 1
        expiries = group.row.expiries + (status is GroupStatus.EXPIRED)
        group.row = replace(group.row, status=status, expiries=expiries)
        if status is GroupStatus.PENDING or status in QUEUED:
            self.add(group)
        else:
            self.counts[status] += 1
            self._bounds.set(group.row.draw, None)
            del self._groups[group.row.draw]

    def waiting(self, status: GroupStatus, upto: int | None = None) -> int:
        """How many groups wait in `status`. With `upto`, only groups that are not younger than this version count."""
        return self._queues[status].count(upto)

    def next_age(self, status: GroupStatus) -> int | None:
        """The age of the group that `pop` would return."""
        return self._queues[status].next_age

    def pop(self, status: GroupStatus) -> Holding:
        """Remove and return the oldest group in `status`. The caller must `move` it, or `put_back`."""
        return self._groups[self._queues[status].pop()]

    def put_back(self, group: Holding) -> None:
        self._queues[group.row.status].push(group.age, group.row.draw)


class _Queue:
    """Draws by age, the oldest first. There are only a few different ages: one per version in production."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._ages: Counter[int] = Counter()

    @property
    def next_age(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def count(self, upto: int | None) -> int:
        if upto is None:
            return len(self._heap)
        return sum(count for age, count in self._ages.items() if age <= upto)

    def push(self, age: int, draw: int) -> None:
        heappush(self._heap, (age, draw))
        self._ages[age] += 1

    def pop(self) -> int:
        age, draw = heappop(self._heap)
        self._ages[age] -= 1
        if not self._ages[age]:
            del self._ages[age]
        return draw


class _Bounds:
    """Counts the groups of each bound. There are only a few different bounds."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._groups: Counter[int] = Counter()

    @property
    def lowest(self) -> int | None:
        return min(self._groups, default=None)

    def of(self, draw: int) -> int | None:
        return self._of.get(draw)

    def set(self, draw: int, bound: int | None) -> None:
        before = self._of.pop(draw, None)
        if before is not None:
            self._groups[before] -= 1
            if not self._groups[before]:
                del self._groups[before]
        if bound is not None:
            self._of[draw] = bound
            self._groups[bound] += 1
