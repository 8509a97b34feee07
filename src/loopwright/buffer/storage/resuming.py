"""Brings the ledger back to a checkpoint, in one transaction, and says what is left to do (D1, D3).

Only evaluations of lost weights are deleted. A group that can no longer be used is rolled back or discarded, and the
trail records it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.buffer.archive import Archive
from loopwright.buffer.codec import decode_reward, decode_task
from loopwright.buffer.storage import ledger
from loopwright.buffer.storage.archiving import bring_back
from loopwright.buffer.storage.trail import TrailEvent, begin_lineage, note_all
from loopwright.ports import GroupRow, HeldGroup, MemberRow, ResumePlan, StalePolicy
from loopwright.types import GroupStatus, Scored

_IS_CURRENT = (
    "round = (SELECT max(round) FROM groups AS later"
    " WHERE later.task_set = groups.task_set AND later.draw = groups.draw)"
)
_HELD = "('aborted', 'expired', 'completed')"


def resume_at(
    db: sqlite3.Connection,
    archive: Archive,
    task_sets: Sequence[str],
    step: int,
    next_draws: Mapping[str, int] | None,
    policy: StalePolicy,
) -> dict[str, ResumePlan]:
    """Undo what came after `step`, then say what is left to do."""
    begin_lineage(db, step, policy)
    bring_back(db, step, archive)
    db.execute("DELETE FROM eval_rollouts WHERE step > ?", (step,))
    again_from = {} if next_draws is None else {task_set: next_draws.get(task_set, 0) for task_set in task_sets}
    _undo(db, step, again_from)
    for task_set in task_sets:
        _reopen(db, archive, task_set)
    return {task_set: _plan(db, task_set, again_from.get(task_set)) for task_set in task_sets}


def _undo(db: sqlite3.Connection, step: int, again_from: Mapping[str, int]) -> None:
    """Undo it in all task sets, also in those that are no longer in the config: a step that is trained again must not
    keep old groups."""
    undone = "SELECT task_set, draw, round FROM groups WHERE step > ?"
    db.execute(f"DELETE FROM trained WHERE (task_set, draw, round) IN ({undone})", (step,))
    _move_all(db, TrailEvent.RETURNED, GroupStatus.COMPLETED, "status = 'consumed' AND step > ?", (step,))
    for drawn_from in again_from.items():
        drawn_later = "task_set = ? AND draw >= ? AND status NOT IN ('rolled_back', 'discarded')"
        _move_all(db, TrailEvent.DISCARDED, GroupStatus.DISCARDED, drawn_later, drawn_from)
    lost = "newest > ? AND status NOT IN ('consumed', 'rolled_back', 'discarded')"
    _move_all(db, TrailEvent.ROLLED_BACK, GroupStatus.ROLLED_BACK, lost, (step,))
    _move_all(db, TrailEvent.ABORTED, GroupStatus.ABORTED, "status = 'pending'", ())


def _reopen(db: sqlite3.Connection, archive: Archive, task_set: str) -> None:
    """Reopen groups that failed because their judger was away, since the last consumed group."""
    failed = db.execute(
        "SELECT draw, round, task FROM groups WHERE task_set = ?1 AND status = 'failed' AND draw > ("
        " SELECT coalesce(max(draw), -1) FROM groups WHERE task_set = ?1 AND status = 'consumed')",
        (task_set,),
    ).fetchall()
    for draw, round, task in failed:
        members = ledger.members_of(db, archive, (task_set, draw, round), decode_task(task), None)
        if any(rollout.awaits_judge for rollout in members):
            named = ("(task_set, draw, round) = (?, ?, ?)", (task_set, draw, round))
            _move_all(db, TrailEvent.REOPENED, GroupStatus.ABORTED, *named)


def _move_all(
    db: sqlite3.Connection, event: TrailEvent, status: GroupStatus, chosen: str, values: tuple[Any, ...]
) -> None:
    """Give a new status to the groups that `chosen` selects, and record it in the trail."""
    note_all(db, event, chosen, values)
    db.execute(f"UPDATE groups SET status = ?, step = NULL, why = NULL WHERE {chosen}", (status.value, *values))


def _plan(db: sqlite3.Connection, task_set: str, next_draw: int | None) -> ResumePlan:
    if next_draw is None:
        (next_draw,) = db.execute(
            "SELECT coalesce(max(draw) + 1, 0) FROM groups WHERE task_set = ?", (task_set,)
        ).fetchone()
    again = db.execute(
        f"SELECT draw FROM groups WHERE task_set = ? AND draw < ? AND {_IS_CURRENT}"
        " AND status IN ('rolled_back', 'discarded') ORDER BY draw",
        (task_set, next_draw),
    ).fetchall()
    return ResumePlan(
        held=tuple(_held(db, task_set)),
        redraw=tuple(draw for (draw,) in again),
        next_draw=next_draw,
        filtered=_filtered_in_a_row(db, task_set),
    )


def _filtered_in_a_row(db: sqlite3.Connection, task_set: str) -> int:
    """How many groups were filtered since the last group that was kept."""
    (count,) = db.execute(
        "SELECT count(*) FROM groups WHERE task_set = ?1 AND status = 'filtered' AND draw > ("
        " SELECT coalesce(max(draw), -1) FROM groups"
        " WHERE task_set = ?1 AND status IN ('completed', 'expired', 'consumed'))",
        (task_set,),
    ).fetchone()
    return int(count)


def _held(db: sqlite3.Connection, task_set: str) -> list[HeldGroup]:
    found = db.execute(
        "SELECT draw, round, task, version, status, expiries FROM groups"
        f" WHERE task_set = ? AND status IN {_HELD} ORDER BY draw",
        (task_set,),
    ).fetchall()
    return [
        HeldGroup(
            GroupRow(task_set, draw, round, decode_task(task), version, GroupStatus(status), expiries=expiries),
            _member_rows(db, task_set, draw, round),
        )
        for draw, round, task, version, status, expiries in found
    ]


def _member_rows(db: sqlite3.Connection, task_set: str, draw: int, round: int) -> tuple[MemberRow, ...]:
    found = db.execute(
        "SELECT member, attempt, expiries, oldest, reward FROM rollouts"
        " WHERE (task_set, draw, round) = (?, ?, ?) ORDER BY member, attempt",
        (task_set, draw, round),
    ).fetchall()
    latest = {row[0]: row for row in found}
    firsts: dict[tuple[int, int], int] = {}
    for member, attempt, expiries, _, _ in found:
        firsts.setdefault((member, expiries), attempt)
    return tuple(
        MemberRow(
            member, attempt, firsts[member, expiries], expiries, oldest, isinstance(decode_reward(reward), Scored)
        )
        for member, attempt, expiries, oldest, reward in latest.values()
    )
