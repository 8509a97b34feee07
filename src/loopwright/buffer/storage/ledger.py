"""The ledger in SQL: what each operation of the storage port does inside a transaction.

The last round of a draw is its current one; all earlier ones were rolled back or discarded, because only such a draw
can be drawn again. So every (task set, draw, round) has exactly one status at any moment (R3).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from loopwright.buffer.codec import decode_reward, decode_task
from loopwright.buffer.rows import RolloutRow, from_row
from loopwright.buffer.storage.refusals import (
    DRAWN_AGAIN,
    already_scored,
    already_stored,
    never_drawn,
    never_stored,
    still_live,
)
from loopwright.buffer.storage.schema import ROLLOUT_COLUMNS
from loopwright.ports import GroupRow, ResumePlan
from loopwright.types import Group, GroupStatus, Rollout, RolloutKey, Scored, Task

_GROUP_COLUMNS = "task_set, draw, round, task, version, status, step"
_IS_CURRENT = (
    "round = (SELECT max(round) FROM groups AS later WHERE later.task_set = g.task_set AND later.draw = g.draw)"
)
_IS_LATEST = """attempt = (
    SELECT max(attempt) FROM rollouts AS later
    WHERE (later.task_set, later.draw, later.round, later.member) = (r.task_set, r.draw, r.round, r.member)
)"""


def draw_group(db: sqlite3.Connection, task_set: str, draw: int, task_json: str, version: int) -> int:
    """Record a new round of the draw; returns its number."""
    last = db.execute(
        "SELECT round, status FROM groups WHERE task_set = ? AND draw = ? ORDER BY round DESC LIMIT 1", (task_set, draw)
    ).fetchone()
    if last and (status := GroupStatus(last[1])) not in DRAWN_AGAIN:
        raise still_live(task_set, draw, status)
    round = last[0] + 1 if last else 0
    db.execute(
        "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
        (task_set, draw, round, task_json, version, version, GroupStatus.PENDING.value),
    )
    return round


def put_rollout(db: sqlite3.Connection, key: RolloutKey, round: int, row: RolloutRow, newest: int) -> None:
    group = (key.task_set, key.draw, round)
    touched = db.execute(
        "UPDATE groups SET newest = max(newest, ?) WHERE (task_set, draw, round) = (?, ?, ?)", (newest, *group)
    )
    if not touched.rowcount:
        raise never_drawn(key.task_set, key.draw)
    try:
        db.execute(f"INSERT INTO rollouts VALUES ({_marks(3 + len(row))})", (*group, *row))
    except sqlite3.IntegrityError as error:
        raise already_stored(str(key)) from error


def put_rewards(db: sqlite3.Connection, round: int, rows: Iterable[tuple[RolloutKey, RolloutRow]]) -> None:
    for key, row in rows:
        place = (key.task_set, key.draw, round, key.member, key.attempt)
        where = "WHERE (task_set, draw, round, member, attempt) = (?, ?, ?, ?, ?)"
        stored = db.execute(f"SELECT reward FROM rollouts {where}", place).fetchone()
        if stored is None:
            raise never_stored(str(key))
        if isinstance(decode_reward(stored[0]), Scored):
            raise already_scored(str(key))
        db.execute(
            f"UPDATE rollouts SET reward = ?, judge_seconds = ? {where}", (row.reward, row.judge_seconds, *place)
        )


def mark_groups(db: sqlite3.Connection, rows: Iterable[tuple[str, int]], status: GroupStatus, step: int | None) -> None:
    for task_set, draw in rows:
        touched = db.execute(
            f"UPDATE groups AS g SET status = ?, step = ? WHERE task_set = ? AND draw = ? AND {_IS_CURRENT}",
            (status.value, step, task_set, draw),
        )
        if not touched.rowcount:
            raise never_drawn(task_set, draw)


def put_evaluation(
    db: sqlite3.Connection, step: int, task_set: str, mode: str, rows: Sequence[tuple[int, str, RolloutRow]]
) -> None:
    """`rows` holds each rollout's draw, task and columns."""
    db.execute("DELETE FROM eval_rollouts WHERE (step, task_set, mode) = (?, ?, ?)", (step, task_set, mode))
    db.executemany(
        f"INSERT INTO eval_rollouts VALUES ({_marks(5 + len(RolloutRow._fields))})",
        [(step, task_set, mode, draw, task, *row) for draw, task, row in rows],
    )


def resume_at(db: sqlite3.Connection, task_set: str, step: int, next_draw: int | None) -> ResumePlan:
    """Undo what came after `step`, then say what is left to do."""
    db.execute("DELETE FROM eval_rollouts WHERE step > ?", (step,))
    db.execute(
        "UPDATE groups SET status = 'completed', step = NULL WHERE task_set = ? AND status = 'consumed' AND step > ?",
        (task_set, step),
    )
    if next_draw is not None:
        db.execute(
            "UPDATE groups SET status = 'discarded', step = NULL"
            " WHERE task_set = ? AND draw >= ? AND status NOT IN ('rolled_back', 'discarded')",
            (task_set, next_draw),
        )
    db.execute(
        "UPDATE groups SET status = 'rolled_back'"
        " WHERE task_set = ? AND newest > ? AND status IN ('pending', 'completed', 'filtered', 'failed')",
        (task_set, step),
    )
    _reopen(db, task_set)
    return _plan(db, task_set, next_draw)


def _reopen(db: sqlite3.Connection, task_set: str) -> None:
    """Groups that failed for want of a judge since the last one that was consumed."""
    (consumed,) = db.execute(
        "SELECT coalesce(max(draw), -1) FROM groups WHERE task_set = ? AND status = 'consumed'", (task_set,)
    ).fetchone()
    for row in _groups(db, task_set, GroupStatus.FAILED, order="draw"):
        members = members_of(db, task_set, row.draw, row.round, row.task) if row.draw > consumed else ()
        if any(rollout.awaits_judge for rollout in members):
            db.execute(
                "UPDATE groups SET status = 'pending' WHERE (task_set, draw, round) = (?, ?, ?)",
                (task_set, row.draw, row.round),
            )


def _plan(db: sqlite3.Connection, task_set: str, next_draw: int | None) -> ResumePlan:
    if next_draw is None:
        (next_draw,) = db.execute(
            "SELECT coalesce(max(draw) + 1, 0) FROM groups WHERE task_set = ?", (task_set,)
        ).fetchone()
    again = db.execute(
        f"SELECT draw FROM groups AS g WHERE task_set = ? AND draw < ? AND {_IS_CURRENT}"
        " AND status IN ('rolled_back', 'discarded') ORDER BY draw",
        (task_set, next_draw),
    ).fetchall()
    return ResumePlan(
        pending=tuple(_groups(db, task_set, GroupStatus.PENDING, order="draw")),
        completed=tuple(_with_scored(db, row) for row in _groups(db, task_set, GroupStatus.COMPLETED, "version, draw")),
        redraw=tuple(draw for (draw,) in again),
        next_draw=next_draw,
        filtered=_filtered_in_a_row(db, task_set),
    )


def _filtered_in_a_row(db: sqlite3.Connection, task_set: str) -> int:
    """Groups that were filtered since the last one that was kept."""
    (count,) = db.execute(
        "SELECT count(*) FROM groups WHERE task_set = ?1 AND status = 'filtered' AND draw > ("
        " SELECT coalesce(max(draw), -1) FROM groups WHERE task_set = ?1 AND status IN ('completed', 'consumed'))",
        (task_set,),
    ).fetchone()
    return int(count)


def _groups(db: sqlite3.Connection, task_set: str, status: GroupStatus, order: str) -> list[GroupRow]:
    found = db.execute(
        f"SELECT {_GROUP_COLUMNS} FROM groups WHERE task_set = ? AND status = ? ORDER BY {order}",
        (task_set, status.value),
    )
    return [
        GroupRow(task_set, draw, round, decode_task(task), version, GroupStatus(status), step)
        for task_set, draw, round, task, version, status, step in found
    ]


def _with_scored(db: sqlite3.Connection, row: GroupRow) -> Group:
    members = members_of(db, row.task_set, row.draw, row.round, row.task)
    scored = tuple(rollout for rollout in members if isinstance(rollout.reward, Scored))
    return Group(row.task_set, row.draw, row.task, scored)


def members_of(db: sqlite3.Connection, task_set: str, draw: int, round: int, task: Task) -> tuple[Rollout, ...]:
    """The latest attempt of each stored member of one group."""
    found = db.execute(
        f"SELECT {ROLLOUT_COLUMNS} FROM rollouts AS r"
        f" WHERE task_set = ? AND draw = ? AND round = ? AND {_IS_LATEST} ORDER BY member",
        (task_set, draw, round),
    )
    return tuple(from_row(RolloutRow._make(row), task_set, draw, task) for row in found)


def current_members(db: sqlite3.Connection, task_set: str, draw: int) -> tuple[Rollout, ...]:
    group = db.execute(
        "SELECT round, task FROM groups WHERE task_set = ? AND draw = ? ORDER BY round DESC LIMIT 1", (task_set, draw)
    ).fetchone()
    if group is None:
        raise never_drawn(task_set, draw)
    round, task = group
    return members_of(db, task_set, draw, round, decode_task(task))


def count_groups(db: sqlite3.Connection) -> dict[str, dict[GroupStatus, int]]:
    table: dict[str, dict[GroupStatus, int]] = {}
    for task_set, status, count in db.execute("SELECT task_set, status, count(*) FROM groups GROUP BY 1, 2"):
        table.setdefault(task_set, dict.fromkeys(GroupStatus, 0))[GroupStatus(status)] = count
    return table


def _marks(count: int) -> str:
    return ", ".join("?" * count)
