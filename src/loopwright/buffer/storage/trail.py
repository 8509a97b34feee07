"""The trail: one row for everything that happened to a group or to one of its members, in the order in which it did.

A row is appended in the transaction of the change that it records, so the trail and the ledger never disagree, unless
one of them was damaged: `loopwright audit` compares them.
"""

from __future__ import annotations

import sqlite3
import time
from enum import StrEnum
from typing import Any

from loopwright.ports import StalePolicy


class TrailEvent(StrEnum):
    """What happened. `version` and `step` say which weights and which train step it was about, where there are any."""

    DRAWN = "drawn"
    """A group was drawn; `version` samples it."""
    TAKEN_UP = "taken_up"
    """A group that was aborted or had expired goes on; `version` samples it."""
    STORED = "stored"
    """One attempt at a member was stored; `version` is that of its oldest token."""
    INTERRUPTED = "interrupted"
    """The tokens of an attempt that goes on later were stored."""
    JUDGED = "judged"
    """An attempt that was stored before got its reward, or its judge failed."""
    ABORTED = "aborted"
    COMPLETED = "completed"
    FILTERED = "filtered"
    FAILED = "failed"
    EXPIRED = "expired"
    CONSUMED = "consumed"
    """Trained at `step`; `version` is that of the oldest token that counted, none if all were too old."""
    RETURNED = "returned"
    """Its consumption at `step` was undone, because the run went on from an earlier checkpoint."""
    REOPENED = "reopened"
    """It had failed for want of a judge, who is asked again."""
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
    """Append one row about the group of that (task set, draw, round)."""
    db.execute(
        f"INSERT INTO trail ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, {_LINEAGE}, ?)",
        (*group, member, attempt, event.value, version, step, time.time()),
    )


def note_all(db: sqlite3.Connection, event: TrailEvent, chosen: str, values: tuple[Any, ...]) -> None:
    """Append one row about each of the groups that `chosen`, SQL with parameters, selects."""
    db.execute(
        f"INSERT INTO trail ({_COLUMNS}) SELECT task_set, draw, round, NULL, NULL, ?, NULL, step, {_LINEAGE}, ?"
        f" FROM groups WHERE {chosen} ORDER BY task_set, draw",
        (event.value, time.time(), *values),
    )


def begin_lineage(db: sqlite3.Connection, step: int, policy: StalePolicy) -> None:
    """From here on, all rows belong to the run as it went on from checkpoint `step`."""
    db.execute(
        "INSERT INTO lineages SELECT coalesce(max(lineage) + 1, 0), ?, ?, ?, ?, ? FROM lineages",
        (step, policy.stale.value, policy.horizon, policy.max_expiries, time.time()),
    )
