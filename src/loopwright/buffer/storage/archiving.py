"""What leaves the database for the archive, and what comes back: each is one transaction, and loses nothing.

A group that was trained goes into the file of its train step. One that is over without having been trained is addressed
to the file of a checkpoint first, so that what is copied and what the database lets go of are the same groups.
"""

from __future__ import annotations

import sqlite3

from loopwright.buffer.archive import Archive, Parcel, ParcelKind, Payload
from loopwright.errors import RunError

_COLUMN = {ParcelKind.TRAINED: "step", ParcelKind.UNTRAINED: "archived"}
"""Which column of a group names its file."""
_IS_UNTRAINED = "status IN ('filtered', 'failed', 'rolled_back', 'discarded')"
_IS_IN_DATABASE = "chains IS NOT NULL"
_IS_IN_ARCHIVE = "stop IS NOT NULL AND chains IS NULL"


def address_untrained(db: sqlite3.Connection, step: int) -> None:
    """Say which groups that are over without having been trained go into the file of checkpoint `step`.

    Of each task set those that were drawn before the last one that was trained: a later one may have failed for want of
    a judge, and is reopened when the run goes on. A file is not added to: what is over since then waits for the next.
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
        f"SELECT {', '.join(Payload._fields)} FROM rollouts WHERE {_is_of(parcel)} AND {_IS_IN_DATABASE}",
        (parcel.step,),
    )
    archive.write(parcel, [Payload._make(row) for row in found])


def let_go(db: sqlite3.Connection, parcel: Parcel) -> None:
    """Free the pages of what the archive has; later rollouts use them again."""
    db.execute(f"UPDATE rollouts SET messages = NULL, chains = NULL WHERE {_is_of(parcel)}", (parcel.step,))


def bring_back(db: sqlite3.Connection, after: int, archive: Archive) -> None:
    """Put the payloads of all files after step `after` back into the database: what was trained is to be trained again,
    maybe at another step, and those files will be written anew."""
    for parcel in _parcels(db, after, _IS_IN_ARCHIVE):
        payloads = archive.read(parcel).values()
        db.executemany(
            "UPDATE rollouts SET messages = ?, chains = ?"
            " WHERE (task_set, draw, round, member, attempt) = (?, ?, ?, ?, ?) AND chains IS NULL",
            [(payload.messages, payload.chains, *payload[:5]) for payload in payloads],
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
    """The files after step `after` of which some payload is `where` this says, oldest first."""
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
    """SQL with the parcel's step as its parameter."""
    chosen = f"SELECT task_set, draw, round FROM groups WHERE {_COLUMN[parcel.kind]} = ?"
    return f"(task_set, draw, round) IN ({chosen})"
