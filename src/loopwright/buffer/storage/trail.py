"""The trail: one row for each event of a group or of one of its members, in order.

A row is appended in the same transaction as the change that it records. So the trail and the ledger agree unless one of
them was damaged. `loopwright audit` compares them.
"""

from __future__ import annotations

import sqlite3
import time
from enum import StrEnum
from typing import Any

from loopwright.ports import StalePolicy


class TrailEvent(StrEnum):
    """What happened. `version` and `step` are the weights and the train step that the event is about, if any."""

    DRAWN = "drawn"
    """A group was drawn; `version` samples it."""
    TAKEN_UP = "taken_up"
    """An aborted or expired group continues; `version` samples it."""
    STORED = "stored"
    """One attempt at a member was stored; `version` is the version of its oldest token."""
    INTERRUPTED = "interrupted"
    """The tokens of an interrupted attempt, which will continue later, were stored."""
    JUDGED = "judged"
    """A stored attempt got its reward, or its judger failed."""
    ABORTED = "aborted"
    COMPLETED = "completed"
    FILTERED = "filtered"
    FAILED = "failed"
    EXPIRED = "expired"
    CONSUMED = "consumed"
    """Trained at `step`; `version` is the version of the oldest trained token, or none if all tokens were too old."""
    RETURNED = "returned"
    """Its consumption at `step` was undone, because the run continued from an earlier checkpoint."""
    REOPENED = "reopened"
    """It had failed because its judger was away; the judger is asked again."""
    ROLLED_BACK = "rolled_back"
    DISCARDED = "discarded"


_LINEAGE = "(SELECT coalesce(max(lineage), 0) FROM lineages)"
_COLUMNS = "task_set, draw, round, member, attempt, event, version, step, lineage, at"


def note(
    db: sqlite3.Connection,
    event: TrailEvent,
    group: tuple[str, int, int],
    *,
    member: int | None = None,
    attempt: int | None = None,
    version: int | None = None,
    step: int | None = None,
) -> None:
    """Append one row about the group with this (task set, draw, round)."""
    db.execute(
        f"INSERT INTO trail ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, {_LINEAGE}, ?)",
        (*group, member, attempt, event.value, version, step, time.time()),
    )


def note_all(db: sqlite3.Connection, event: TrailEvent, chosen: str, values: tuple[Any, ...]) -> None:
    """Append one row about each group that `chosen` selects. `chosen` is SQL with parameters."""
    db.execute(
        f"INSERT INTO trail ({_COLUMNS}) SELECT task_set, draw, round, NULL, NULL, ?, NULL, step, {_LINEAGE}, ?"
        f" FROM groups WHERE {chosen} ORDER BY task_set, draw",
        (event.value, time.time(), *values),
    )


def begin_lineage(db: sqlite3.Connection, step: int, policy: StalePolicy) -> None:
    """Begin a new lineage: all later rows belong to the run as it continues from checkpoint `step`."""
    db.execute(
        "INSERT INTO lineages SELECT coalesce(max(lineage) + 1, 0), ?, ?, ?, ?, ? FROM lineages",
        (step, policy.stale.value, policy.horizon, policy.max_expiries, time.time()),
    )
