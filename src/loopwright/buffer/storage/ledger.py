"""The ledger in SQL: what each operation of the storage port does inside a transaction.

The last round of a draw is its current one. All earlier rounds were rolled back or discarded, because only such a draw
can be drawn again. So every (task set, draw, round) has exactly one status at any moment (R3). Each change of a status
is a row of the trail.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from loopwright.buffer.archive import Archive, GroupKey, Parcel
from loopwright.buffer.codec import decode_reward, decode_task
from loopwright.buffer.rows import RolloutRow, from_row
from loopwright.buffer.storage.refusals import (
    DRAWN_AGAIN,
    already_scored,
    already_stored,
    never_drawn,
    never_stored,
    still_live,
    still_partial,
)
from loopwright.buffer.storage.schema import ROLLOUT_COLUMNS
from loopwright.buffer.storage.trail import TrailEvent, note
from loopwright.ports import GroupRow
from loopwright.types import GroupStatus, Rollout, RolloutKey, Scored, StopReason, Task

_IS_LATEST = """attempt = (
    SELECT max(attempt) FROM rollouts AS later
    WHERE (later.task_set, later.draw, later.round, later.member) = (r.task_set, r.draw, r.round, r.member)
)"""
_IS_IN_TIME = """expiries = (
    SELECT expiries FROM groups AS g WHERE (g.task_set, g.draw, g.round) = (r.task_set, r.draw, r.round)
)"""
_OF_GROUP = "WHERE (task_set, draw, round) = (?, ?, ?)"
_OF_ROLLOUT = "WHERE (task_set, draw, round, member, attempt) = (?, ?, ?, ?, ?)"
_MARKS = ", ".join("?" * len(RolloutRow._fields))
_INTO_ROLLOUTS = f"INTO rollouts (task_set, draw, round, expiries, {ROLLOUT_COLUMNS}) VALUES (?, ?, ?, ?, {_MARKS})"


class TrainedRow(NamedTuple):
    """What a train step computed of one rollout."""

    member: int
    attempt: int
    advantage: float
    token_weight: float
    loss_terms: float | None
    numbers: bytes | None


class ConsumedGroup(NamedTuple):
    """A group that was trained. `oldest` is the version of the oldest token that was trained."""

    task_set: str
    draw: int
    oldest: int | None
    trained: Sequence[TrainedRow]


_INTO_TRAINED = (
    f"REPLACE INTO trained (task_set, draw, round, {', '.join(TrainedRow._fields)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def draw_group(db: sqlite3.Connection, task_set: str, draw: int, task_json: str, version: int) -> int:
    """Record a new round of the draw, and return its number."""
    last = db.execute(
        "SELECT round, status FROM groups WHERE task_set = ? AND draw = ? ORDER BY round DESC LIMIT 1", (task_set, draw)
    ).fetchone()
    if last and (status := GroupStatus(last[1])) not in DRAWN_AGAIN:
        raise still_live(task_set, draw, status)
    round = last[0] + 1 if last else 0
    db.execute(
        "INSERT INTO groups (task_set, draw, round, task, version, newest, status, expiries)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
        (task_set, draw, round, task_json, version, version, GroupStatus.PENDING.value),
    )
    note(db, TrailEvent.DRAWN, (task_set, draw, round), version=version)
    return round


def take_up_group(db: sqlite3.Connection, row: GroupRow, version: int) -> None:
    group = (row.task_set, row.draw, row.round)
    _move(db, group, GroupStatus.PENDING)
    note(db, TrailEvent.TAKEN_UP, group, version=version)


def put_rollout(db: sqlite3.Connection, group: GroupRow, row: RolloutRow, newest: int) -> None:
    of = (group.task_set, group.draw, group.round)
    touched = db.execute(f"UPDATE groups SET newest = max(newest, ?) {_OF_GROUP}", (newest, *of))
    if not touched.rowcount:
        raise never_drawn(group.task_set, group.draw)
    columns = (*of, group.expiries, *row)
    try:
        db.execute(f"INSERT {_INTO_ROLLOUTS}", columns)
    except sqlite3.IntegrityError as error:
        (stop,) = db.execute(f"SELECT stop FROM rollouts {_OF_ROLLOUT}", (*of, row.member, row.attempt)).fetchone()
        if stop != StopReason.ABORTED:
            raise already_stored(str(RolloutKey(group.task_set, group.draw, row.member, row.attempt))) from error
        db.execute(f"REPLACE {_INTO_ROLLOUTS}", columns)
    event = TrailEvent.INTERRUPTED if row.stop == StopReason.ABORTED else TrailEvent.STORED
    note(db, event, of, member=row.member, attempt=row.attempt, version=row.oldest)


def put_rewards(db: sqlite3.Connection, round: int, rows: Iterable[tuple[RolloutKey, RolloutRow]]) -> None:
    for key, row in rows:
        of = (key.task_set, key.draw, round)
        place = (*of, key.member, key.attempt)
        stored = db.execute(f"SELECT stop, reward FROM rollouts {_OF_ROLLOUT}", place).fetchone()
        if stored is None:
            raise never_stored(str(key))
        if stored[0] == StopReason.ABORTED:
            raise still_partial(str(key))
        if isinstance(decode_reward(stored[1]), Scored):
            raise already_scored(str(key))
        db.execute(
            f"UPDATE rollouts SET reward = ?, judge_seconds = ?, judged_at = ? {_OF_ROLLOUT}",
            (row.reward, row.judge_seconds, row.judged_at, *place),
        )
        note(db, TrailEvent.JUDGED, of, member=key.member, attempt=key.attempt)


def mark_groups(db: sqlite3.Connection, rows: Iterable[tuple[str, int]], status: GroupStatus, why: str | None) -> None:
    for task_set, draw in rows:
        group = (task_set, draw, _current_round(db, task_set, draw))
        _move(db, group, status, why=why)
        note(db, TrailEvent(status.value), group)


def consume_groups(db: sqlite3.Connection, groups: Iterable[ConsumedGroup], step: int) -> None:
    for task_set, draw, oldest, trained in groups:
        group = (task_set, draw, _current_round(db, task_set, draw))
        _move(db, group, GroupStatus.CONSUMED, step)
        note(db, TrailEvent.CONSUMED, group, version=oldest, step=step)
        db.executemany(_INTO_TRAINED, [(*group, *row) for row in trained])


def _move(
    db: sqlite3.Connection, group: GroupKey, status: GroupStatus, step: int | None = None, why: str | None = None
) -> None:
    once_more = int(status is GroupStatus.EXPIRED)
    touched = db.execute(
        f"UPDATE groups SET status = ?, step = ?, expiries = expiries + ?, why = ? {_OF_GROUP}",
        (status.value, step, once_more, why, *group),
    )
    if not touched.rowcount:
        raise never_drawn(*group[:2])


def _current_round(db: sqlite3.Connection, task_set: str, draw: int) -> int:
    """The current round of a draw. It is -1, which no group has, if the draw was never made."""
    (round,) = db.execute(
        "SELECT coalesce(max(round), -1) FROM groups WHERE task_set = ? AND draw = ?", (task_set, draw)
    ).fetchone()
    return int(round)


def put_evaluation(
    db: sqlite3.Connection, step: int, task_set: str, mode: str, rows: Sequence[tuple[int, str, RolloutRow]]
) -> None:
    """`rows` holds each rollout's draw, task and columns."""
    db.execute("DELETE FROM eval_rollouts WHERE (step, task_set, mode) = (?, ?, ?)", (step, task_set, mode))
    db.executemany(
        f"INSERT INTO eval_rollouts (step, task_set, mode, draw, task, {ROLLOUT_COLUMNS})"
        f" VALUES (?, ?, ?, ?, ?, {_MARKS})",
        [(step, task_set, mode, draw, task, *row) for draw, task, row in rows],
    )


def members_of(
    db: sqlite3.Connection,
    archive: Archive,
    group: GroupKey,
    task: Task,
    parcel: Parcel | None,
    *,
    in_time: bool = False,
) -> tuple[Rollout, ...]:
    """The latest attempt of each stored member of one group. `parcel` is the file that its payloads were moved to.

    With `in_time`, members that were made before the group expired are left out.
    """
    found = db.execute(
        f"SELECT {ROLLOUT_COLUMNS} FROM rollouts AS r WHERE task_set = ? AND draw = ? AND round = ?"
        f" AND {_IS_LATEST}{f' AND {_IS_IN_TIME}' if in_time else ''} ORDER BY member",
        group,
    )
    rows = (archive.restored(group, parcel, RolloutRow._make(row)) for row in found)
    return tuple(from_row(row, *group[:2], task) for row in rows)


def current_members(db: sqlite3.Connection, archive: Archive, task_set: str, draw: int) -> tuple[Rollout, ...]:
    """The members of the draw's current round that were made since the group last expired."""
    group = db.execute(
        "SELECT round, task, step, archived FROM groups WHERE task_set = ? AND draw = ? ORDER BY round DESC LIMIT 1",
        (task_set, draw),
    ).fetchone()
    if group is None:
        raise never_drawn(task_set, draw)
    round, task, step, archived = group
    parcel = Parcel.of(step, archived)
    return members_of(db, archive, (task_set, draw, round), decode_task(task), parcel, in_time=True)


def count_lineages(db: sqlite3.Connection) -> int:
    (count,) = db.execute("SELECT coalesce(max(lineage) + 1, 0) FROM lineages").fetchone()
    return int(count)


def stored_evaluations(db: sqlite3.Connection) -> frozenset[tuple[int, str, str]]:
    return frozenset(db.execute("SELECT DISTINCT step, task_set, mode FROM eval_rollouts"))


def count_groups(db: sqlite3.Connection) -> dict[str, dict[GroupStatus, int]]:
    table: dict[str, dict[GroupStatus, int]] = {}
    for task_set, status, count in db.execute("SELECT task_set, status, count(*) FROM groups GROUP BY 1, 2"):
        table.setdefault(task_set, dict.fromkeys(GroupStatus, 0))[GroupStatus(status)] = count
    return table
