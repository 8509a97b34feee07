"""Reads a run's rollouts for commands that show them. It is read-only, works while the run is writing, and never blocks
the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from loopwright.buffer.archive import Archive, GroupKey, Parcel, ParcelKind
from loopwright.buffer.codec import decode_task
from loopwright.buffer.rows import RolloutRow, from_row
from loopwright.buffer.storage import ledger
from loopwright.buffer.storage.schema import ROLLOUT_COLUMNS, snapshot
from loopwright.core.constrained import without_constrained
from loopwright.core.staleness import without_stale
from loopwright.types import Group, GroupStatus, Rollout, RolloutKey, Scored


class Evaluation(NamedTuple):
    """Names one stored evaluation: the train step before it, the task set, and the mode of sampling."""

    step: int
    task_set: str
    mode: str


class Attempt(NamedTuple):
    """One attempt at one member of a drawn group, with the group's status and the train step that consumed it."""

    rollout: Rollout
    round: int
    status: GroupStatus
    step: int | None


class StoredGroup(NamedTuple):
    """One round of a drawn group, and where it stands."""

    key: GroupKey
    status: GroupStatus


class StoredRun:
    """The database of a run. Each call reads what is committed at that moment, and keeps nothing open afterwards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._archive = Archive.beside(path)

    def steps(self) -> tuple[int, ...]:
        """The train steps that consumed groups, in order."""
        with snapshot(self._path) as db:
            found = db.execute("SELECT DISTINCT step FROM groups WHERE step IS NOT NULL ORDER BY step").fetchall()
        return tuple(step for (step,) in found)

    def opened_at(self) -> tuple[int, ...]:
        """The step of the checkpoint at which each lineage began."""
        with snapshot(self._path) as db:
            return tuple(step for (step,) in db.execute("SELECT step FROM lineages ORDER BY lineage"))

    def groups(self) -> tuple[StoredGroup, ...]:
        """All groups that were drawn, in the order of their draws, without their rollouts."""
        with snapshot(self._path) as db:
            found = db.execute("SELECT task_set, draw, round, status FROM groups ORDER BY draw, task_set, round")
            return tuple(StoredGroup((name, draw, round), GroupStatus(status)) for name, draw, round, status in found)

    def members(self, group: GroupKey) -> tuple[Rollout, ...]:
        """The latest attempt of each member of one group."""
        return tuple(self._members("(task_set, draw, round) = (?, ?, ?)", *group))

    def rollouts(self, step: int) -> tuple[Rollout, ...]:
        """The rollouts of the groups that train step `step` consumed, by draw and member; failed ones included."""
        return tuple(self._members("step = ? ORDER BY task_set, draw", step))

    def trained(self, step: int) -> tuple[Group, ...]:
        """The groups that train step `step` consumed, with the masks and in the order that the learner got."""
        with snapshot(self._path) as db:
            found = db.execute(
                "SELECT task_set, draw, round, task, horizon, max(place) FROM trail AS t"
                " JOIN groups USING (task_set, draw, round, step) LEFT JOIN lineages AS l ON l.lineage = t.lineage"
                " WHERE event = 'consumed' AND t.step = ? GROUP BY task_set, draw, round ORDER BY max(place)",
                (step,),
            ).fetchall()
            return tuple(
                without_stale(self._trained(db, (name, draw, round), task, step), step, horizon)[0]
                for name, draw, round, task, horizon, _ in found
            )

    def _trained(self, db: sqlite3.Connection, group: GroupKey, task: str, step: int) -> Group:
        decoded = decode_task(task)
        parcel = Parcel(ParcelKind.TRAINED, step)
        members = ledger.members_of(db, self._archive, group, decoded, parcel, in_time=True)
        scored = tuple(one for one in members if isinstance(one.reward, Scored))
        return without_constrained(Group(*group[:2], decoded, scored))[0]

    def rollouts_in(self, status: GroupStatus) -> Iterator[Rollout]:
        """The rollouts of the groups in `status`, the latest draws first. They are read group by group, because there
        may be many."""
        return self._members("status = ? ORDER BY draw DESC, task_set, round DESC", status.value)

    def attempts(self) -> Iterator[Attempt]:
        """Every train rollout, also failed and repeated ones. They are read one at a time, because there may be
        many."""
        with snapshot(self._path) as db:
            for task_set, draw, round, status, step, archived, task, *columns in db.execute(
                f"SELECT task_set, draw, round, status, step, archived, task, {ROLLOUT_COLUMNS}"
                " FROM rollouts JOIN groups USING (task_set, draw, round)"
                " ORDER BY task_set, draw, round, member, attempt"
            ):
                parcel = Parcel.of(step, archived)
                row = self._archive.restored((task_set, draw, round), parcel, RolloutRow._make(columns))
                rollout = from_row(row, task_set, draw, decode_task(task))
                yield Attempt(rollout, round, GroupStatus(status), step)

    def find(self, key: RolloutKey) -> Rollout | None:
        """One train rollout of any group, trained or not. None if there is no rollout with that key."""
        with snapshot(self._path) as db:
            found = db.execute(
                f"SELECT round, step, archived, task, {ROLLOUT_COLUMNS}"
                " FROM rollouts JOIN groups USING (task_set, draw, round)"
                " WHERE task_set = ? AND draw = ? AND member = ? AND attempt = ? ORDER BY round DESC LIMIT 1",
                (key.task_set, key.draw, key.member, key.attempt),
            ).fetchone()
        if found is None:
            return None
        round, step, archived, task, *columns = found
        group, parcel = (key.task_set, key.draw, round), Parcel.of(step, archived)
        row = self._archive.restored(group, parcel, RolloutRow._make(columns))
        return from_row(row, key.task_set, key.draw, decode_task(task))

    def evaluations(self) -> tuple[Evaluation, ...]:
        """All stored evaluations, in the order of their steps."""
        with snapshot(self._path) as db:
            found = db.execute("SELECT DISTINCT step, task_set, mode FROM eval_rollouts ORDER BY 1, 2, 3").fetchall()
        return tuple(Evaluation._make(row) for row in found)

    def eval_rollouts(self, step: int, task_set: str, mode: str) -> tuple[Rollout, ...]:
        """The rollouts of one evaluation, by draw and member."""
        with snapshot(self._path) as db:
            found = db.execute(
                f"SELECT draw, task, {ROLLOUT_COLUMNS} FROM eval_rollouts"
                " WHERE step = ? AND task_set = ? AND mode = ? ORDER BY draw, member, attempt",
                (step, task_set, mode),
            ).fetchall()
        return tuple(
            from_row(RolloutRow._make(columns), task_set, draw, decode_task(task)) for draw, task, *columns in found
        )

    def counts(self) -> Mapping[str, Mapping[GroupStatus, int]]:
        """Groups by task set and status."""
        with snapshot(self._path) as db:
            return ledger.count_groups(db)

    def _members(self, chosen: str, *values: int | str) -> Iterator[Rollout]:
        """The rollouts of the groups that `chosen`, SQL with these parameters, selects and orders."""
        with snapshot(self._path) as db:
            groups = db.execute(
                f"SELECT task_set, draw, round, task, step, archived FROM groups WHERE {chosen}", values
            )
            for task_set, draw, round, task, step, archived in groups:
                group, parcel = (task_set, draw, round), Parcel.of(step, archived)
                yield from ledger.members_of(db, self._archive, group, decode_task(task), parcel)
