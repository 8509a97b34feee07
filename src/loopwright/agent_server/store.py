"""Keeps what is known of every trial in one SQLite file, so that results survive the server, and no id is run twice.

What was submitted is not kept, because it holds keys and is never run again: a trial that the file has as not over,
when it is opened, is lost. Each write is committed at once, in the event loop: a commit only writes to the system's
memory. Committed data survives the death of this process.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from loopwright.agents.trials.wire import OVER, TrialState, TrialStatus, status_from_json, status_to_json
from loopwright.errors import AgentServerError, RunError
from loopwright.serve.store_file import locked_store, unusable_store

log = logging.getLogger("loopwright")

FORMAT = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS trials (
    id TEXT PRIMARY KEY, digest TEXT, state TEXT NOT NULL, stage TEXT NOT NULL, label TEXT NOT NULL,
    changed REAL NOT NULL, status BLOB
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_change ON trials (changed);
CREATE INDEX IF NOT EXISTS kept ON trials (changed) WHERE status IS NOT NULL;
"""
MOST_LISTED = 1000


class TrialStore:
    """Use it as a context manager. `digest` of a trial tells whether the same was submitted again; a trial that was
    cancelled before it was submitted has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Two servers would call each other's trials lost.
            stack.enter_context(locked_store(self._path, "another agent server keeps its trials"))
            try:
                self._connection = _opened(self._path)
            except (sqlite3.Error, OSError) as error:
                raise unusable_store(str(self._path), error) from error
            stack.callback(self._connection.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection = None
        self._stack.close()

    def lose_unfinished(self) -> int:
        """Mark what an earlier server had not finished as lost, and return how many these are."""
        over = ", ".join(f"'{state.value}'" for state in OVER)
        with self._transaction() as db:
            rows = db.execute(f"SELECT id, state, stage, label FROM trials WHERE state NOT IN ({over})").fetchall()
        for id, state, stage, label in rows:
            self.change(lost(TrialStatus(id, TrialState(state), TrialState(stage), label)))
        return len(rows)

    def add(self, status: TrialStatus, digest: str | None) -> None:
        row = (status.id, digest, status.state.value, status.stage.value, status.label, time.time(), _text(status))
        with self._transaction() as db:
            db.execute("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def change(self, status: TrialStatus) -> None:
        row = (status.state.value, status.stage.value, time.time(), _text(status), status.id)
        with self._transaction() as db:
            db.execute("UPDATE trials SET state = ?, stage = ?, changed = ?, status = ? WHERE id = ?", row)

    def find(self, id: str) -> tuple[TrialStatus | None, str | None, bool]:
        """What is known of a trial, the digest of what was submitted, and whether the id was ever used. The status of
        an old trial is gone."""
        with self._transaction() as db:
            row = db.execute("SELECT status, digest FROM trials WHERE id = ?", (id,)).fetchone()
        if row is None:
            return None, None, False
        return None if row[0] is None else status_from_json(orjson.loads(row[0])), row[1], True

    def latest(self) -> list[TrialStatus]:
        """The latest trials, without their output."""
        query = "SELECT id, state, stage, label FROM trials ORDER BY changed DESC LIMIT ?"
        with self._transaction() as db:
            rows = db.execute(query, (MOST_LISTED,)).fetchall()
        return [TrialStatus(id, TrialState(state), TrialState(stage), label) for id, state, stage, label in rows]

    def forget(self, before: float) -> None:
        """Remove the results of trials that ended before that time. Their ids stay, so that none is run again."""
        over = ", ".join(f"'{state.value}'" for state in OVER)
        with self._transaction() as db:
            db.execute(
                f"UPDATE trials SET status = NULL WHERE changed < ? AND status IS NOT NULL AND state IN ({over})",
                (before,),
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._connection is None:
                raise sqlite3.ProgrammingError("the store is not open")
            with self._connection as connection:
                yield connection
        except sqlite3.Error as error:
            # Clients get this error, so it must not name the file. The log does.
            log.error("%s cannot be used: %s", self._path, error)
            raise unusable_store("the store of trials", error) from error


def lost(status: TrialStatus) -> TrialStatus:
    """What is told of a trial whose end is not known."""
    error = AgentServerError(
        f"the agent server did not end the trial {status.id} (stage {status.stage}), and will not run it again",
        remedy="nothing to do: a run makes the rollout again",
    )
    return TrialStatus(status.id, TrialState.LOST, status.stage, status.label, error=error)


def _text(status: TrialStatus) -> bytes:
    return orjson.dumps(status_to_json(status))


def _opened(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, FORMAT):
        connection.close()
        raise RunError(
            f"{path} was written by another version (format {version}, this one writes {FORMAT})",
            remedy="name another file",
        )
    connection.executescript(SCHEMA)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    return connection
