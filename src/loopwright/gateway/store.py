"""Stores sessions so that they survive the process. A call is logged before the engine is asked, a turn is stored
before its answer ends, and a session is kept until it is deleted.

It uses SQLite in WAL mode. Each write is committed at once, in the event loop: a commit only writes to the system's
memory, which takes less time than waking a thread or collecting the writes of others. So nothing can happen in the
middle of a commit. The slow part, moving the log into the file, is done in a thread. Committed data survives the death
of this process.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from loopwright.core.redaction import Redactor
from loopwright.errors import RunError
from loopwright.gateway.call_log import CallLog, LoggedCall
from loopwright.gateway.database import move_log, open_database
from loopwright.gateway.session import Session, SessionState
from loopwright.gateway.wire import session_facts, session_from_row, session_row, turn_from_row, turn_row
from loopwright.render.recording.recorded import Recorded
from loopwright.serve.store_file import locked_store, unusable_store

log = logging.getLogger("loopwright")

TIDY_SECONDS = 2.0
DELIVERED_SECONDS = 0.01
"""How long a delivery may be only in memory. A commit for each delivery, or another table in each turn's commit, would
take a twentieth of a call's whole time."""


NOTED_HELD_SECONDS = 1.0
"""How many held seconds of a session a crash may lose."""


class SessionStore(Protocol):
    """Keeps sessions. When a method has returned, its change is stored. An ended session stays until it is deleted,
    unless the store `forgets`."""

    forgets: bool

    def create(self, session: Session) -> None: ...

    def note(self, session: Session) -> None:
        """Store what has changed in an open session besides its turns."""
        ...

    def ask(self, session_id: str, call_id: str, prompt_tokens: int, samples: int, draws: int) -> None:
        """Log a call before the engine is asked. `draws` is how many samples the session has requested now, with the
        `samples` of this call."""
        ...

    def withdraw(self, session: Session, call_id: str) -> None:
        """A logged call has failed or was cancelled. If this cannot be stored, the call counts as cut off."""
        ...

    def add(self, session: Session, call_id: str, turns: Sequence[Recorded]) -> None:
        """Store all turns of a logged call or none; with them, the call counts as answered. They are not delivered
        yet."""
        ...

    def delivered(self, session_id: str, numbers: Sequence[int]) -> None:
        """Record that these turns have reached their client. If this cannot be stored, the client does not notice."""
        ...

    def undelivered(self, session_id: str) -> Set[int]: ...

    def end(self, session: Session) -> None:
        """Store the state and the facts of a session that has ended."""
        ...

    def note_outcome(self, session: Session) -> None:
        """Store the outcome of a session that has ended."""
        ...

    def delete(self, session_id: str) -> None: ...

    def cut_off(self, session_id: str) -> Sequence[LoggedCall]:
        """The calls that were out when an earlier gateway died."""
        ...

    def sessions(self) -> Sequence[Session]:
        """All stored sessions, without their turns."""
        ...

    def turns(self, session_id: str) -> Sequence[Recorded]: ...


class MemoryStore:
    """A `SessionStore` for sessions that end with the process, such as those of a training run. It stores nothing,
    because the owner of each session has its record."""

    forgets = True

    def create(self, session: Session) -> None:
        """Nothing to keep."""

    def note(self, session: Session) -> None:
        """Nothing to keep."""

    def ask(self, session_id: str, call_id: str, prompt_tokens: int, samples: int, draws: int) -> None:
        """Nothing to keep."""

    def withdraw(self, session: Session, call_id: str) -> None:
        """Nothing to keep."""

    def add(self, session: Session, call_id: str, turns: Sequence[Recorded]) -> None:
        """Nothing to keep."""

    def delivered(self, session_id: str, numbers: Sequence[int]) -> None:
        """Nothing to keep."""

    def undelivered(self, session_id: str) -> Set[int]:
        return frozenset()

    def end(self, session: Session) -> None:
        """Nothing to keep."""

    def note_outcome(self, session: Session) -> None:
        """Nothing to keep."""

    def delete(self, session_id: str) -> None:
        """Nothing to keep."""

    def cut_off(self, session_id: str) -> Sequence[LoggedCall]:
        return ()

    def sessions(self) -> Sequence[Session]:
        return ()

    def turns(self, session_id: str) -> Sequence[Recorded]:
        return ()


class MemoryRecords(MemoryStore):
    """A `SessionStore` for sessions that end with the process, and whose owners are in other processes: the record of
    an ended session is kept until it is deleted."""

    forgets = False

    def __init__(self) -> None:
        self._ended: dict[str, Sequence[Recorded]] = {}

    def end(self, session: Session) -> None:
        self._ended[session.id] = tuple(session.recorder.turns)

    def delete(self, session_id: str) -> None:
        self._ended.pop(session_id, None)

    def turns(self, session_id: str) -> Sequence[Recorded]:
        return self._ended.get(session_id, ())


class SqliteStore:
    """A `SessionStore` in one file. Use it as `async with`.

    Secrets that `redact` knows are removed from the texts of a session when it ends. An open session keeps its texts
    unchanged, because it continues from them.
    """

    forgets = False

    def __init__(self, path: Path, redact: Redactor | None = None) -> None:
        self._path = path
        self._redact = redact or Redactor()
        self._connection: sqlite3.Connection | None = None
        self._calls: CallLog | None = None
        self._lock = ExitStack()
        self._tidying: asyncio.Task[None] | None = None
        self._wrote = False
        self._delivered: list[tuple[str, int]] = []
        """Turns that have reached their client. This is stored with the next write, or a moment later."""
        self._removed = False

    async def __aenter__(self) -> Self:
        with ExitStack() as lock:
            # Two gateways would give the same numbers to turns, and would not know each other's records.
            lock.enter_context(locked_store(self._path, "another gateway keeps its sessions"))
            try:
                self._connection, self._calls = await asyncio.to_thread(open_database, self._path)
            except (sqlite3.Error, OSError) as error:
                raise unusable_store(str(self._path), error) from error
            self._lock = lock.pop_all()
        self._tidying = asyncio.create_task(self._tidy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait((self._tidying,))
        if self._connection is not None:
            with suppress(RunError):
                self._write_delivered()
            self._connection.close()
            self._connection = None
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        self._lock.close()

    def create(self, session: Session) -> None:
        with self._transaction() as db:
            db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", session_row(session))

    def note(self, session: Session) -> None:
        with self._transaction() as db:
            _note(db, session)

    def ask(self, session_id: str, call_id: str, prompt_tokens: int, samples: int, draws: int) -> None:
        self._log.ask(session_id, call_id, prompt_tokens, samples, draws)

    def withdraw(self, session: Session, call_id: str) -> None:
        with suppress(RunError):
            # First the number of draws: without the call in the log, nothing else tells which seeds were used.
            self.note(session)
            self._log.ended(call_id)

    def add(self, session: Session, call_id: str, turns: Sequence[Recorded]) -> None:
        if not turns:
            self.withdraw(session, call_id)
            return
        rows = [(session.id, turn.number, *turn_row(turn)) for turn in turns]
        with self._transaction() as db:
            db.executemany("INSERT INTO turns VALUES (?, ?, ?, ?)", rows)
            if session.held_seconds > session.noted_held + NOTED_HELD_SECONDS:
                _note(db, session)
        self._log.answered(call_id)

    def delivered(self, session_id: str, numbers: Sequence[int]) -> None:
        if numbers and not self._delivered:
            asyncio.get_running_loop().call_later(DELIVERED_SECONDS, self._write_delivered_later)
        for number in numbers:
            self._delivered.append((session_id, number))

    def _write_delivered_later(self) -> None:
        # What is wrong with the file is told to the next who writes.
        with suppress(RunError):
            self._write_delivered()

    def _write_delivered(self) -> None:
        if self._delivered:
            with self._transaction() as db:
                db.executemany("INSERT OR IGNORE INTO delivered VALUES (?, ?)", self._delivered)
            self._delivered.clear()

    def undelivered(self, session_id: str) -> Set[int]:
        self._write_delivered()
        with self._transaction() as db:
            of = "SELECT number FROM {} WHERE session = :session"
            both = f"{of.format('turns')} EXCEPT {of.format('delivered')}"
            rows = db.execute(both, {"session": session_id}).fetchall()
        return {number for (number,) in rows}

    def end(self, session: Session) -> None:
        ended = (session.state.value, self._redact(session_facts(session)), session.id)
        with self._transaction() as db:
            db.execute("UPDATE sessions SET state = ?, facts = ? WHERE id = ?", ended)
            changed = self._redacted(db, session.id)
            self._removed |= bool(changed)
            db.executemany("UPDATE turns SET facts = ? WHERE session = ? AND number = ?", changed)

    def note_outcome(self, session: Session) -> None:
        with self._transaction() as db:
            facts = self._redact(session_facts(session))
            db.execute("UPDATE sessions SET facts = ? WHERE id = ?", (facts, session.id))

    def delete(self, session_id: str) -> None:
        self._removed = True
        self._delivered = [turn for turn in self._delivered if turn[0] != session_id]
        with self._transaction() as db:
            db.execute("DELETE FROM turns WHERE session = ?", (session_id,))
            db.execute("DELETE FROM delivered WHERE session = ?", (session_id,))
            db.execute("DELETE FROM cut_off WHERE session = ?", (session_id,))
            db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def cut_off(self, session_id: str) -> Sequence[LoggedCall]:
        with self._transaction() as db:
            rows = db.execute("SELECT * FROM cut_off WHERE session = ? ORDER BY asked", (session_id,)).fetchall()
        return [LoggedCall(*row) for row in rows]

    def sessions(self) -> Sequence[Session]:
        with self._transaction() as db:
            rows = db.execute("SELECT * FROM sessions ORDER BY created").fetchall()
        return [session_from_row(row) for row in rows]

    def turns(self, session_id: str) -> Sequence[Recorded]:
        query = "SELECT number, facts, tokens FROM turns WHERE session = ? ORDER BY number"
        with self._transaction() as db:
            rows = db.execute(query, (session_id,)).fetchall()
        turns: list[Recorded] = []
        for number, facts, tokens in rows:
            turns.append(turn_from_row(number, facts, tokens, turns))
        return turns

    def _redacted(self, db: sqlite3.Connection, session_id: str) -> list[tuple[bytes, str, int]]:
        """The turns of a session that contain secrets, with the secrets removed."""
        told = db.execute("SELECT facts, number FROM turns WHERE session = ?", (session_id,))
        texts = ((facts.decode(), number) for facts, number in told)
        shown = ((text, self._redact(text), number) for text, number in texts)
        return [(new.encode(), session_id, number) for text, new, number in shown if new is not text]

    @property
    def _log(self) -> CallLog:
        if self._calls is None:
            raise RunError("the store is not open", remedy="use it inside `async with`")
        return self._calls

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in this block is committed at its end, or nothing."""
        self._wrote = True
        try:
            if self._connection is None:
                raise sqlite3.ProgrammingError("the store is not open")
            with self._connection as connection:
                yield connection
        except sqlite3.Error as error:
            # Agents get this error, so it must not name the file. The log does.
            log.error("%s cannot be used: %s", self._path, error)
            raise unusable_store("the store of sessions", error) from error

    async def _tidy(self) -> None:
        """From time to time, move committed data from the log into the file, outside of the event loop."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self._wrote:
                removed, emptied = self._removed, False
                self._wrote = self._removed = False
                # What is wrong with the file is told to the next who writes.
                with suppress(sqlite3.Error):
                    emptied = await asyncio.to_thread(move_log, self._path, empty=removed)
                if removed and not emptied:
                    self._wrote = self._removed = True


def _note(db: sqlite3.Connection, session: Session) -> None:
    """Only while it is open: the facts of an ended session do not change."""
    facts = (session_facts(session), session.id, SessionState.OPEN.value)
    db.execute("UPDATE sessions SET facts = ? WHERE id = ? AND state = ?", facts)
    session.noted_turns, session.noted_held = len(session.recorder), session.held_seconds
