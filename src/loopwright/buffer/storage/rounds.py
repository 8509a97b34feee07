"""The groups of the storage in memory, and how a resume changes them. This corresponds to the database's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from loopwright.buffer.codec import decode_reward
from loopwright.buffer.rows import RolloutRow, from_row
from loopwright.buffer.storage.refusals import DRAWN_AGAIN
from loopwright.ports import GroupRow, HeldGroup, MemberRow, ResumePlan
from loopwright.types import GroupStatus, Rollout, Scored


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One attempt at a member. `expiries` is its group's count when it was made."""

    columns: RolloutRow
    expiries: int

    def judged(self, columns: RolloutRow) -> StoredRollout:
        new = {name: getattr(columns, name) for name in ("reward", "judge_seconds", "judged_at")}
        return replace(self, columns=self.columns._replace(**new))


@dataclass(slots=True)
class Round:
    """One round of a draw: its ledger row, the newest weights that sampled for it, and its rollouts by member and
    attempt."""

    row: GroupRow
    newest: int
    rollouts: dict[tuple[int, int], StoredRollout] = field(default_factory=dict)

    def move(self, status: GroupStatus, step: int | None = None) -> None:
        expiries = self.row.expiries + (status is GroupStatus.EXPIRED)
        self.row = replace(self.row, status=status, step=step, expiries=expiries)

    def put(self, columns: RolloutRow, expiries: int, newest: int) -> None:
        self.rollouts[columns.member, columns.attempt] = StoredRollout(columns, expiries)
        self.newest = max(self.newest, newest)

    def latest(self) -> list[StoredRollout]:
        """The latest attempt of each member, in member order."""
        return list({member: stored for (member, _), stored in sorted(self.rollouts.items())}.values())

    def members(self) -> tuple[Rollout, ...]:
        """The latest attempts as rollouts, without those that were made before the group expired."""
        row = self.row
        in_time = (stored for stored in self.latest() if stored.expiries == row.expiries)
        return tuple(from_row(stored.columns, row.task_set, row.draw, row.task) for stored in in_time)

    def awaits_judge(self) -> bool:
        row = self.row
        members = (from_row(stored.columns, row.task_set, row.draw, row.task) for stored in self.latest())
        return any(rollout.awaits_judge for rollout in members)

    def held(self) -> HeldGroup:
        return HeldGroup(self.row, tuple(self._member_row(stored) for stored in self.latest()))

    def _member_row(self, stored: StoredRollout) -> MemberRow:
        columns = stored.columns
        is_scored = isinstance(decode_reward(columns.reward), Scored)
        made = ((other.columns, other.expiries) for other in self.rollouts.values())
        first = min(
            other.attempt for other, expiries in made if (other.member, expiries) == (columns.member, stored.expiries)
        )
        return MemberRow(columns.member, columns.attempt, first, stored.expiries, columns.oldest, is_scored)


def undo(group: Round, step: int, next_draw: int | None) -> None:
    """Bring one group back to a status that it can have at checkpoint `step`."""
    row = group.row
    if row.status is GroupStatus.CONSUMED and row.step is not None and row.step > step:
        group.move(GroupStatus.COMPLETED)
    if next_draw is not None and row.draw >= next_draw and row.status not in DRAWN_AGAIN:
        group.move(GroupStatus.DISCARDED)
    if group.newest > step and group.row.status not in (GroupStatus.CONSUMED, *DRAWN_AGAIN):
        group.move(GroupStatus.ROLLED_BACK)
    if group.row.status is GroupStatus.PENDING:
        group.move(GroupStatus.ABORTED)


def reopen(current: Iterable[Round]) -> None:
    """Reopen groups that failed because their judger was away, since the last consumed group."""
    consumed = max((group.row.draw for group in _with_status(current, GroupStatus.CONSUMED)), default=-1)
    for group in _with_status(current, GroupStatus.FAILED):
        if group.row.draw > consumed and group.awaits_judge():
            group.move(GroupStatus.ABORTED)


def plan_of(current: Sequence[Round], next_draw: int | None, first_draw: int) -> ResumePlan:
    """What is left to do. `current` holds the last round of each draw, in the order of the draws, which begin with
    `first_draw`."""
    if next_draw is None:
        next_draw = max((group.row.draw + 1 for group in current), default=first_draw)
    held = _with_status(current, GroupStatus.ABORTED, GroupStatus.EXPIRED, GroupStatus.COMPLETED)
    return ResumePlan(
        held=tuple(group.held() for group in held),
        redraw=tuple(g.row.draw for g in _with_status(current, *DRAWN_AGAIN) if g.row.draw < next_draw),
        next_draw=next_draw,
        filtered=_filtered_in_a_row(current),
    )


def _filtered_in_a_row(current: Iterable[Round]) -> int:
    """How many groups were filtered since the last group that was kept."""
    kept = _with_status(current, GroupStatus.COMPLETED, GroupStatus.EXPIRED, GroupStatus.CONSUMED)
    last = max((group.row.draw for group in kept), default=-1)
    return sum(group.row.draw > last for group in _with_status(current, GroupStatus.FILTERED))


def _with_status(groups: Iterable[Round], *statuses: GroupStatus) -> list[Round]:
    return [group for group in groups if group.row.status in statuses]
