"""Moves payloads from the database to the archive and back. Each move is one transaction and loses nothing.

A group that was trained goes into the file of its train step. A group that ended without being trained is first
assigned to the file of a checkpoint, so that the groups that are copied and those that the database deletes are the
same.
"""

from __future__ import annotations

import sqlite3

from loopwright.buffer.archive import Archive, Parcel, ParcelKind
from loopwright.buffer.payload_file import Payload
from loopwright.errors import RunError

_COLUMN = {ParcelKind.TRAINED: "step", ParcelKind.UNTRAINED: "archived"}
"""The column of a group that names its file."""
_IS_UNTRAINED = "status IN ('filtered', 'failed', 'rolled_back', 'discarded')"
_IS_IN_DATABASE = "chains IS NOT NULL"
_IS_IN_ARCHIVE = "stop IS NOT NULL AND chains IS NULL"


def address_untrained(db: sqlite3.Connection, step: int) -> None:
    """Assign groups that ended without being trained to the file of checkpoint `step`.

    In each task set these are the groups drawn before the last trained one. A later one may have failed because its
    judger was away, and is reopened when the run continues. Nothing is added to an existing file: groups that end
    later wait for the next checkpoint.
    """
    if db.execute("SELECT 1 FROM groups WHERE archived = ?", (step,)).fetchone():
        return
    last_trained = db.execute(
        "SELECT task_set, max(draw) FROM groups WHERE status = 'consumed' AND step <= ? GROUP BY task_set", (step,)
    ).fetchall()
    for task_set, draw in last_trained:
        db.execute(
            f"UPDATE groups SET archived = ? WHERE task_set = ? AND draw < ? AND archived IS NULL AND {_IS_UNTRAINED}"
            " AND EXISTS (SELECT 1 FROM rollouts AS r WHERE chains IS NOT NULL"
            " AND (r.task_set, r.draw, r.round) = (groups.task_set, groups.draw, groups.round))",
            (step, task_set, draw),
        )


def parcels_to_move(db: sqlite3.Connection, after: int, upto: int) -> list[Parcel]:
    """The files after step `after` and up to `upto` whose payloads are still in the database, oldest first."""
    return [parcel for parcel in _parcels(db, after, _IS_IN_DATABASE) if parcel.step <= upto]


def copy_out(db: sqlite3.Connection, parcel: Parcel, archive: Archive) -> None:
    """Write the payloads of one file to the archive."""
    found = db.execute(
        f"SELECT {', '.join(Payload._fields)} FROM rollouts LEFT JOIN trained USING"
        f" (task_set, draw, round, member, attempt) WHERE {_is_of(parcel)} AND {_IS_IN_DATABASE}"
        # Members of a group are looked at together, so they lie together.
        " ORDER BY task_set, draw, round, member, attempt",
        (parcel.step,),
    )
    archive.write(parcel, [Payload._make(row) for row in found])


def delete_archived(db: sqlite3.Connection, parcel: Parcel) -> None:
    """Delete from the database what the archive has. Later rollouts use the freed pages."""
    db.execute(f"UPDATE rollouts SET messages = NULL, chains = NULL WHERE {_is_of(parcel)}", (parcel.step,))
    db.execute(f"UPDATE trained SET numbers = NULL WHERE {_is_of(parcel)}", (parcel.step,))


def bring_back(db: sqlite3.Connection, after: int, archive: Archive) -> None:
    """Put the payloads of all files after step `after` back into the database. Their groups will be trained again,
    maybe at another step, and these files will be written again. The numbers of their tokens are not wanted: that
    training is undone."""
    for parcel in _parcels(db, after, _IS_IN_ARCHIVE):
        payloads = archive.read(parcel)
        db.executemany(
            "UPDATE rollouts SET messages = ?, chains = ?"
            " WHERE (task_set, draw, round, member, attempt) = (?, ?, ?, ?, ?) AND chains IS NULL",
            ((payload.messages, payload.chains, *payload.key) for payload in payloads),
        )
        (missing,) = db.execute(
            f"SELECT count(*) FROM rollouts WHERE {_is_of(parcel)} AND {_IS_IN_ARCHIVE}", (parcel.step,)
        ).fetchone()
        if missing:
            raise RunError(
                f"{archive.path(parcel)} lacks the tokens of {missing} rollouts that the run goes back before",
                remedy="restore the file from a copy, or start over with --fresh",
            )
    db.execute("UPDATE groups SET archived = NULL WHERE archived > ?", (after,))


def _parcels(db: sqlite3.Connection, after: int, where: str) -> list[Parcel]:
    """The files after step `after` that have a payload for which the SQL condition `where` holds, oldest first."""
    found = [
        Parcel(kind, step)
        for kind, column in _COLUMN.items()
        for (step,) in db.execute(
            f"SELECT DISTINCT {column} FROM groups JOIN rollouts USING (task_set, draw, round)"
            f" WHERE {column} > ? AND {where}",
            (after,),
        )
    ]
    return sorted(found, key=lambda parcel: parcel.step)


def _is_of(parcel: Parcel) -> str:
    """An SQL condition with the parcel's step as its parameter."""
    chosen = f"SELECT task_set, draw, round FROM groups WHERE {_COLUMN[parcel.kind]} = ?"
    return f"(task_set, draw, round) IN ({chosen})"
