"""Storage in memory, for tests and short runs. It is lost when the process ends.

It keeps the same encoded rows as the database, so it returns and refuses the same. It has no trail, because nobody
could read the trail afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loopwright.buffer.codec import decode_reward, decode_task, encode_task
from loopwright.buffer.rows import RolloutRow, from_row, newest_version, to_row
from loopwright.buffer.storage.refusals import (
    DRAWN_AGAIN,
    already_scored,
    already_stored,
    check_belongs,
    check_evaluates,
    check_markable,
    never_drawn,
    never_stored,
    still_live,
    still_partial,
)
from loopwright.buffer.storage.rounds import Round, plan_of, reopen, undo
from loopwright.ports import GroupRow, ResumePlan, StalePolicy
from loopwright.types import Group, GroupStatus, Rollout, Scored, StopReason, Task, TrainedRollout


class MemoryStorage:
    """The storage port over dictionaries."""

    def __init__(self) -> None:
        self._draws: dict[tuple[str, int], list[Round]] = {}
        self._evals: dict[tuple[int, str, str], list[tuple[int, str, RolloutRow]]] = {}
        self._resumes = 0
        self._first_draws: dict[str, int] = {}
        """Where its draws begin, if earlier ones were those of another process."""

    @property
    def lineage(self) -> int:
        """It counts from 0 in every process."""
        return max(0, self._resumes - 1)

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        stored = decode_task(encode_task(task))
        rounds = self._draws.setdefault((task_set, draw), [])
        if rounds and rounds[-1].row.status not in DRAWN_AGAIN:
            raise still_live(task_set, draw, rounds[-1].row.status)
        row = GroupRow(task_set, draw, len(rounds), stored, version, GroupStatus.PENDING)
        rounds.append(Round(row, newest=version))
        return replace(row, task=task)

    async def take_up(self, row: GroupRow, version: int) -> GroupRow:
        self._round(row).move(GroupStatus.PENDING)
        return replace(row, status=GroupStatus.PENDING)

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        check_belongs(row, rollout)
        columns = to_row(rollout)
        group, place = self._round(row), (columns.member, columns.attempt)
        if place in group.rollouts and group.rollouts[place].columns.stop != StopReason.ABORTED:
            raise already_stored(str(rollout.key))
        group.put(columns, row.expiries, newest_version(rollout))

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        rounds = self._draws.get((row.task_set, row.draw), [])
        stored = rounds[row.round].rollouts if row.round < len(rounds) else {}
        judged = {}
        for rollout in rollouts:
            check_belongs(row, rollout)
            place, columns = (rollout.key.member, rollout.key.attempt), to_row(rollout)
            if place not in stored:
                raise never_stored(str(rollout.key))
            if stored[place].columns.stop == StopReason.ABORTED:
                raise still_partial(str(rollout.key))
            if isinstance(decode_reward(stored[place].columns.reward), Scored):
                raise already_scored(str(rollout.key))
            judged[place] = stored[place].judged(columns)
        stored |= judged

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, why: str | None = None) -> None:
        check_markable(status)
        for group in [self._rounds(*named)[-1] for named in rows]:
            group.move(status)

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        """As for the trail, nobody could read what was `trained`."""
        for current in [self._rounds(group.task_set, group.draw)[-1] for group in groups]:
            current.move(GroupStatus.CONSUMED, step)

    async def put_eval(self, step: int, task_set: str, mode: str, rollouts: Sequence[Rollout]) -> None:
        check_evaluates(task_set, rollouts)
        rows = [(rollout.key.draw, encode_task(rollout.task), to_row(rollout)) for rollout in rollouts]
        self._evals[step, task_set, mode] = rows

    async def evaluations(self) -> frozenset[tuple[int, str, str]]:
        return frozenset(self._evals)

    async def resume(
        self, task_sets: Sequence[str], *, step: int, next_draws: Mapping[str, int] | None, policy: StalePolicy
    ) -> Mapping[str, ResumePlan]:
        self._resumes += 1
        self._evals = {key: rows for key, rows in self._evals.items() if key[0] <= step}
        again_from = {} if next_draws is None else {task_set: next_draws.get(task_set, 0) for task_set in task_sets}
        if not self._draws:
            self._first_draws |= again_from
        current: dict[str, list[Round]] = {task_set: [] for task_set in task_sets}
        for (task_set, _), rounds in sorted(self._draws.items()):
            undo(rounds[-1], step, again_from.get(task_set))
            current.setdefault(task_set, []).append(rounds[-1])
        for task_set in task_sets:
            reopen(current[task_set])
        first = self._first_draws
        return {name: plan_of(current[name], again_from.get(name), first.get(name, 0)) for name in task_sets}

    async def rollouts_of(self, task_set: str, draw: int) -> tuple[Rollout, ...]:
        return self._rounds(task_set, draw)[-1].members()

    async def counts(self) -> Mapping[str, Mapping[GroupStatus, int]]:
        table: dict[str, dict[GroupStatus, int]] = {}
        for (task_set, _), rounds in self._draws.items():
            row = table.setdefault(task_set, dict.fromkeys(GroupStatus, 0))
            for group in rounds:
                row[group.row.status] += 1
        return table

    async def flush(self) -> None:
        """Do nothing: this storage is lost with the process anyway."""

    async def archive(self, step: int) -> None:
        """Do nothing: there is no archive for a storage in memory."""

    def eval_rollouts(self, step: int, task_set: str, mode: str) -> tuple[Rollout, ...]:
        """The rollouts of one evaluation, as `StoredRun.eval_rollouts` returns them for a database."""
        rows = sorted(self._evals.get((step, task_set, mode), []), key=lambda row: (row[0], row[2][:2]))
        return tuple(from_row(columns, task_set, draw, decode_task(task)) for draw, task, columns in rows)

    def _rounds(self, task_set: str, draw: int) -> list[Round]:
        rounds = self._draws.get((task_set, draw))
        if not rounds:
            raise never_drawn(task_set, draw)
        return rounds

    def _round(self, row: GroupRow) -> Round:
        rounds = self._rounds(row.task_set, row.draw)
        if row.round >= len(rounds):
            raise never_drawn(row.task_set, row.draw)
        return rounds[row.round]
