"""What leaves the database for the archive, and what comes back: each is one transaction, and loses nothing."""

from __future__ import annotations

import sqlite3

from loopwright.buffer.archive import Archive, Payload
from loopwright.errors import RunError

_CONSUMED_AT = "(task_set, draw, round) IN (SELECT task_set, draw, round FROM groups WHERE step = ?)"


def steps_to_move(db: sqlite3.Connection, after: int, upto: int) -> list[int]:
    """The train steps whose payloads are still in the database, oldest first."""
    found = db.execute(
        "SELECT DISTINCT step FROM groups JOIN rollouts USING (task_set, draw, round)"
        " WHERE step > ? AND step <= ? AND chains IS NOT NULL ORDER BY step",
        (after, upto),
    )
    return [step for (step,) in found]


def copy_out(db: sqlite3.Connection, step: int, archive: Archive) -> None:
    """Write the payloads of one train step to the archive."""
    found = db.execute(
        f"SELECT {', '.join(Payload._fields)} FROM rollouts WHERE {_CONSUMED_AT} AND chains IS NOT NULL", (step,)
    )
    archive.write(step, [Payload._make(row) for row in found])


def let_go(db: sqlite3.Connection, step: int) -> None:
    """Free the pages of what the archive has; later rollouts use them again."""
    db.execute(f"UPDATE rollouts SET messages = NULL, chains = NULL WHERE {_CONSUMED_AT}", (step,))


def bring_back(db: sqlite3.Connection, after: int, archive: Archive) -> None:
    """Put the payloads of all train steps after `after` back into the database: they are to be trained again, maybe at
    another step, and that step's file will be written anew."""
    moved = db.execute(
        "SELECT DISTINCT step FROM groups JOIN rollouts USING (task_set, draw, round)"
        " WHERE step > ? AND stop IS NOT NULL AND chains IS NULL",
        (after,),
    ).fetchall()
    for (step,) in moved:
        payloads = archive.read(step).values()
        db.executemany(
            "UPDATE rollouts SET messages = ?, chains = ?"
            " WHERE (task_set, draw, round, member, attempt) = (?, ?, ?, ?, ?) AND chains IS NULL",
            [(payload.messages, payload.chains, *payload[:5]) for payload in payloads],
        )
        (missing,) = db.execute(
            f"SELECT count(*) FROM rollouts WHERE {_CONSUMED_AT} AND stop IS NOT NULL AND chains IS NULL", (step,)
        ).fetchone()
        if missing:
            raise RunError(
                f"{archive.path(step)} lacks the tokens of {missing} rollouts, which are to be trained again",
                remedy="restore the file from a copy, or start over with --fresh",
            )
