"""Where sessions outlive the process: a turn is stored before its answer is sent, and a session until it is deleted.

SQLite in WAL mode, group commit: what is submitted in one turn of the event loop goes into one transaction. It is
committed right there: that is a write to memory that the system owns, which takes less time than waking a thread. What
takes long, moving the log into the file, is left to a thread. What was committed survives the death of this process.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from loopwright.errors import RunError
from loopwright.gateway.session import Session, SessionState
from loopwright.gateway.wire import session_from_row, session_row, turn_from_row, turn_row
from loopwright.render.recording.recorded import Recorded

T = TypeVar("T")
FORMAT = 1
TIDY_SECONDS = 2.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, key_digest TEXT NOT NULL, settings TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
    session TEXT NOT NULL, number INTEGER NOT NULL, facts BLOB NOT NULL, tokens BLOB NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""


class SessionStore(Protocol):
    """Keeps sessions. Whatever a method has returned from is kept. One that has ended stays until it is deleted, unless
    the store `forgets`."""

    forgets: bool

    async def create(self, session: Session) -> None: ...

    async def add(self, session_id: str, turns: Sequence[Recorded]) -> None:
        """Keep all of them or none."""
        ...

    async def end(self, session_id: str, state: SessionState) -> None: ...

    async def delete(self, session_id: str) -> None: ...

    async def sessions(self) -> Sequence[Session]:
        """Every session that is kept, without its turns."""
        ...

    async def turns(self, session_id: str) -> Sequence[Recorded]: ...


class MemoryStore:
    """A `SessionStore` for sessions that end with the process, as those of a train run do: it keeps nothing, because
    each session's owner has it."""

    forgets = True

    async def create(self, session: Session) -> None:
        """Nothing to keep."""

    async def add(self, session_id: str, turns: Sequence[Recorded]) -> None:
        """Nothing to keep."""

    async def end(self, session_id: str, state: SessionState) -> None:
        """Nothing to keep."""

    async def delete(self, session_id: str) -> None:
        """Nothing to keep."""

    async def sessions(self) -> Sequence[Session]:
        return ()

    async def turns(self, session_id: str) -> Sequence[Recorded]:
        return ()


Work = Callable[[sqlite3.Connection], Any]


class SqliteStore:
    """A `SessionStore` in one file. Use it as `async with`."""

    forgets = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._lock = ExitStack()
        self._waiting: list[tuple[Work, asyncio.Future[Any]]] = []
        self._tidying: asyncio.Task[None] | None = None
        self._wrote = False

    async def __aenter__(self) -> Self:
        with ExitStack() as lock:
            lock.enter_context(_locked(self._path))
            try:
                self._connection = await asyncio.to_thread(_open, self._path)
            except sqlite3.Error as error:
                raise _unusable(self._path, error) from error
            self._lock = lock.pop_all()
        self._tidying = asyncio.create_task(self._tidy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commit()
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait((self._tidying,))
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lock.close()

    async def create(self, session: Session) -> None:
        row = session_row(session)
        await self._do(lambda db: db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", row))

    async def add(self, session_id: str, turns: Sequence[Recorded]) -> None:
        rows = [(session_id, turn.number, *turn_row(turn)) for turn in turns]
        await self._do(lambda db: db.executemany("INSERT INTO turns VALUES (?, ?, ?, ?)", rows))

    async def end(self, session_id: str, state: SessionState) -> None:
        change = (state.value, session_id)
        await self._do(lambda db: db.execute("UPDATE sessions SET state = ? WHERE id = ?", change))

    async def delete(self, session_id: str) -> None:
        def delete(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM turns WHERE session = ?", (session_id,))
            db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

        await self._do(delete)

    async def sessions(self) -> Sequence[Session]:
        rows = await self._do(lambda db: db.execute("SELECT * FROM sessions ORDER BY created").fetchall())
        return [session_from_row(row) for row in rows]

    async def turns(self, session_id: str) -> Sequence[Recorded]:
        query = "SELECT number, facts, tokens FROM turns WHERE session = ? ORDER BY number"
        rows = await self._do(lambda db: db.execute(query, (session_id,)).fetchall())
        turns: list[Recorded] = []
        for number, facts, tokens in rows:
            turns.append(turn_from_row(number, facts, tokens, turns))
        return turns

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The work's result, once it is committed. Work that was submitted is done, whether or not its caller waits."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._commit)
        self._waiting.append((work, done))
        return await done

    def _commit(self) -> None:
        batch, self._waiting = self._waiting, []
        if batch:
            self._settle(batch)

    def _settle(self, batch: Sequence[tuple[Work, asyncio.Future[Any]]]) -> None:
        try:
            results = self._written([work for work, _ in batch])
        except sqlite3.Error as error:
            if len(batch) > 1:
                # What cannot be written takes nobody else with it.
                for one in batch:
                    self._settle([one])
            elif not batch[0][1].cancelled():
                batch[0][1].set_exception(_unusable(self._path, error))
            return
        for (_, done), result in zip(batch, results, strict=True):
            if not done.cancelled():
                done.set_result(result)

    def _written(self, batch: Sequence[Work]) -> list[Any]:
        if self._connection is None:
            raise sqlite3.ProgrammingError("the store is not open")
        self._wrote = True
        with self._connection as connection:
            return [work(connection) for work in batch]

    async def _tidy(self) -> None:
        """Move what was committed from the log into the file, from time to time, and not in the event loop."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self._wrote:
                self._wrote = False
                # What is wrong with the file is told to the next who writes.
                with suppress(sqlite3.Error):
                    await asyncio.to_thread(_checkpoint, self._path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two gateways would number the turns of a session alike, and neither knows what the other has recorded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"another gateway keeps its sessions in {path}", remedy="end that one, or name another file"
            ) from error
        yield


def _open(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.executescript(SCHEMA)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, FORMAT):
        with closing(connection):
            raise RunError(
                f"{path} was written by another version (format {version}, this one writes {FORMAT})",
                remedy="finish its sessions with that version, or name another file",
            )
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    return connection


def _checkpoint(path: Path) -> None:
    """It waits for nobody: what is in use stays in the log until the next time."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _unusable(path: Path, error: sqlite3.Error) -> RunError:
    return RunError(f"{path} cannot be used: {error}", remedy="see to the disk's space and the file's permissions")
