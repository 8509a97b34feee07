"""Storage that lives and dies with the process, for tests and throw-away runs.

It keeps the same encoded rows as the database does, so what it returns, and what it refuses, is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopwright.buffer.codec import decode_reward, decode_task, encode_task
from loopwright.buffer.rows import RolloutRow, from_row, newest_version, to_row
from loopwright.buffer.storage.refusals import (
    DRAWN_AGAIN,
    already_scored,
    already_stored,
    check_belongs,
    check_evaluates,
    check_step,
    never_drawn,
    never_stored,
    still_live,
)
from loopwright.ports import GroupRow, ResumePlan
from loopwright.types import Group, GroupStatus, Rollout, Scored, Task


@dataclass(slots=True)
class _Round:
    """One round of a draw: its ledger row, the newest weights behind it, and its rollouts by member and attempt."""

    row: GroupRow
    newest: int
    rollouts: dict[tuple[int, int], RolloutRow] = field(default_factory=dict)

    def move(self, status: GroupStatus, step: int | None = None) -> None:
        self.row = replace(self.row, status=status, step=step)

    def members(self) -> tuple[Rollout, ...]:
        """The latest attempt of each member, in member order."""
        latest = {member: stored for (member, _), stored in sorted(self.rollouts.items())}
        return tuple(from_row(stored, self.row.task_set, self.row.draw, self.row.task) for stored in latest.values())

    def scored(self) -> Group:
        members = tuple(rollout for rollout in self.members() if isinstance(rollout.reward, Scored))
        return Group(self.row.task_set, self.row.draw, self.row.task, members)


class MemoryStorage:
    """The storage port over dictionaries."""

    def __init__(self) -> None:
        self._draws: dict[tuple[str, int], list[_Round]] = {}
        self._evals: dict[tuple[int, str, str], list[tuple[int, str, RolloutRow]]] = {}

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        stored = decode_task(encode_task(task))
        rounds = self._draws.setdefault((task_set, draw), [])
        if rounds and rounds[-1].row.status not in DRAWN_AGAIN:
            raise still_live(task_set, draw, rounds[-1].row.status)
        row = GroupRow(task_set, draw, len(rounds), stored, version, GroupStatus.PENDING)
        rounds.append(_Round(row, newest=version))
        return replace(row, task=task)

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        check_belongs(row, rollout)
        columns = to_row(rollout)
        rounds = self._rounds(row.task_set, row.draw)
        if row.round >= len(rounds):
            raise never_drawn(row.task_set, row.draw)
        group = rounds[row.round]
        if (columns.member, columns.attempt) in group.rollouts:
            raise already_stored(str(rollout.key))
        group.rollouts[columns.member, columns.attempt] = columns
        group.newest = max(group.newest, newest_version(rollout))

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        rounds = self._draws.get((row.task_set, row.draw), [])
        stored = rounds[row.round].rollouts if row.round < len(rounds) else {}
        judged = {}
        for rollout in rollouts:
            check_belongs(row, rollout)
            place, columns = (rollout.key.member, rollout.key.attempt), to_row(rollout)
            if place not in stored:
                raise never_stored(str(rollout.key))
            if isinstance(decode_reward(stored[place].reward), Scored):
                raise already_scored(str(rollout.key))
            judged[place] = stored[place]._replace(reward=columns.reward, judge_seconds=columns.judge_seconds)
        stored |= judged

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, step: int | None = None) -> None:
        check_step(status, step)
        for group in [self._rounds(*named)[-1] for named in rows]:
            group.move(status, step)

    async def put_eval(self, step: int, task_set: str, mode: str, rollouts: Sequence[Rollout]) -> None:
        check_evaluates(task_set, rollouts)
        rows = [(rollout.key.draw, encode_task(rollout.task), to_row(rollout)) for rollout in rollouts]
        self._evals[step, task_set, mode] = rows

    async def resume(self, task_set: str, *, step: int, next_draw: int | None) -> ResumePlan:
        self._evals = {key: rows for key, rows in self._evals.items() if key[0] <= step}
        current = self._current(task_set)
        for group in current:
            _undo(group, step, next_draw)
        _reopen(current)
        if next_draw is None:
            next_draw = max((group.row.draw + 1 for group in current), default=0)
        completed = sorted(_with_status(current, GroupStatus.COMPLETED), key=lambda group: group.row.version)
        return ResumePlan(
            pending=tuple(group.row for group in _with_status(current, GroupStatus.PENDING)),
            completed=tuple(group.scored() for group in completed),
            redraw=tuple(g.row.draw for g in _with_status(current, *DRAWN_AGAIN) if g.row.draw < next_draw),
            next_draw=next_draw,
            filtered=_filtered_in_a_row(current),
        )

    async def rollouts_of(self, task_set: str, draw: int) -> tuple[Rollout, ...]:
        return self._rounds(task_set, draw)[-1].members()

    async def counts(self) -> Mapping[str, Mapping[GroupStatus, int]]:
        table: dict[str, dict[GroupStatus, int]] = {}
        for (task_set, _), rounds in self._draws.items():
            row = table.setdefault(task_set, dict.fromkeys(GroupStatus, 0))
            for group in rounds:
                row[group.row.status] += 1
        return table

    def eval_rollouts(self, step: int, task_set: str, mode: str) -> tuple[Rollout, ...]:
        """The rollouts of one evaluation, as `StoredRun.eval_rollouts` gives them for a database."""
        rows = sorted(self._evals.get((step, task_set, mode), []), key=lambda row: (row[0], row[2][:2]))
        return tuple(from_row(columns, task_set, draw, decode_task(task)) for draw, task, columns in rows)

    def _rounds(self, task_set: str, draw: int) -> list[_Round]:
        rounds = self._draws.get((task_set, draw))
        if not rounds:
            raise never_drawn(task_set, draw)
        return rounds

    def _current(self, task_set: str) -> list[_Round]:
        """The last round of each draw, in the order of the draws."""
        return [rounds[-1] for (owner, _), rounds in sorted(self._draws.items()) if owner == task_set]


def _undo(group: _Round, step: int, next_draw: int | None) -> None:
    """Bring one group back to where it can stand at checkpoint `step`."""
    row = group.row
    if row.status is GroupStatus.CONSUMED and row.step is not None and row.step > step:
        group.move(GroupStatus.COMPLETED)
    if next_draw is not None and row.draw >= next_draw and row.status not in DRAWN_AGAIN:
        group.move(GroupStatus.DISCARDED)
    if group.newest > step and group.row.status not in (GroupStatus.CONSUMED, *DRAWN_AGAIN):
        group.move(GroupStatus.ROLLED_BACK)


def _reopen(current: Iterable[_Round]) -> None:
    """Groups that failed for want of a judge since the last one that was consumed."""
    consumed = max((group.row.draw for group in _with_status(current, GroupStatus.CONSUMED)), default=-1)
    for group in _with_status(current, GroupStatus.FAILED):
        if group.row.draw > consumed and any(rollout.awaits_judge for rollout in group.members()):
            group.move(GroupStatus.PENDING)


def _filtered_in_a_row(current: Iterable[_Round]) -> int:
    """Groups that were filtered since the last one that was kept."""
    kept = [group.row.draw for group in _with_status(current, GroupStatus.COMPLETED, GroupStatus.CONSUMED)]
    return sum(group.row.draw > max(kept, default=-1) for group in _with_status(current, GroupStatus.FILTERED))


def _with_status(groups: Iterable[_Round], *statuses: GroupStatus) -> list[_Round]:
    return [group for group in groups if group.row.status in statuses]
