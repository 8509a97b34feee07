"""A SQLite connection in a thread of its own, with group commit.

Submitted work is done even if its caller no longer waits. All work that is waiting when the thread is free goes into
one transaction, and a caller gets its result only after the commit. If the commit fails, all callers in it get the
error, nothing is stored, and the thread continues. If even that fails, the connection is unusable: all later callers
get the error, so that nobody waits forever.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from loopwright.buffer.storage.schema import storage_error
from loopwright.errors import RunError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
Opener = Callable[[Path], AbstractContextManager[sqlite3.Connection]]


@dataclass(frozen=True, slots=True)
class _Job(Generic[T]):
    """Work, and the future of its caller. The caller may be gone before the work is done."""

    work: Work[T]
    future: asyncio.Future[T]


Outcome = Callable[[asyncio.Future[T]], None]
"""Sets the result or the exception of a caller's future."""


class SqliteThread:
    """Runs work on one connection in the order of submission. It belongs to the event loop that started it."""

    def __init__(self, name: str, path: Path, opener: Opener) -> None:
        self._path = path
        self._opener = opener
        self._jobs: SimpleQueue[list[_Job[Any]] | None] = SimpleQueue()
        self._arrived: list[_Job[Any]] = []
        self._opened: Future[None] = Future()
        self._accepting = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    async def start(self) -> None:
        """Open the connection. It returns when the connection is usable, or raises."""
        self._opened.set_running_or_notify_cancel()
        self._thread.start()
        await asyncio.wrap_future(self._opened)
        self._accepting = True

    async def stop(self) -> None:
        """Finish the submitted work, and close."""
        self._accepting = False
        self._submit()
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def do(self, work: Work[T]) -> T:
        """Return the work's result after it is committed."""
        if not self._accepting:
            raise RunError(f"{self._path} is not open", remedy="use the storage inside its `async with` block")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._arrived:
            loop.call_soon(self._submit)
        self._arrived.append(_Job(work, future))
        return await future

    def _submit(self) -> None:
        """Submit all work of one turn of the event loop at once. If the thread woke up for each piece, it would take
        the interpreter lock from callers that have not submitted yet, and commit for each of them."""
        if self._arrived:
            self._jobs.put(self._arrived)
            self._arrived = []

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._opener(self._path))
            except Exception as error:  # handed to the caller of `start`, who raises it
                known = storage_error(error, self._path) if isinstance(error, sqlite3.Error) else error
                self._opened.set_exception(known)
                return
            self._opened.set_result(None)
            self._serve(connection)

    def _serve(self, connection: sqlite3.Connection) -> None:
        """Do submitted work until the thread must end."""
        broken: Exception | None = None
        while batch := self._next_batch():
            try:
                outcomes = self._refusals(batch, broken) if broken else self._commit(connection, batch)
            except Exception as error:  # handed to all callers from now on
                broken = error
                outcomes = self._refusals(batch, error)
            _tell(batch, outcomes)

    def _next_batch(self) -> list[_Job[Any]]:
        """All waiting jobs, at least one. Empty if the thread must end."""
        batch: list[_Job[Any]] = []
        jobs = self._jobs.get()
        while jobs is not None:
            batch += jobs
            try:
                jobs = self._jobs.get_nowait()
            except Empty:
                return batch
        if batch:
            self._jobs.put(None)
        return batch

    def _commit(self, connection: sqlite3.Connection, batch: list[_Job[Any]]) -> list[Outcome[Any]]:
        try:
            connection.execute("BEGIN")
            outcomes = [_attempt(connection, job) for job in batch]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return self._refusals(batch, error)
        return outcomes

    def _refusals(self, batch: list[_Job[Any]], error: Exception) -> list[Outcome[Any]]:
        if isinstance(error, sqlite3.Error):
            return [_refuse(storage_error(error, self._path)) for _ in batch]
        return [_refuse(error)] * len(batch)


def _tell(batch: Sequence[_Job[Any]], outcomes: Sequence[Outcome[Any]]) -> None:
    """Wake each event loop once, not once per caller: that would cost more than the work itself."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome[Any]]]] = {}
    for job, outcome in zip(batch, outcomes, strict=True):
        waiting.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, pairs in waiting.items():
        # In a loop that has ended nobody waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_end, pairs)


def _end(pairs: Sequence[tuple[asyncio.Future[Any], Outcome[Any]]]) -> None:
    for future, outcome in pairs:
        if not future.done():
            outcome(future)


def _refuse(error: Exception) -> Outcome[Any]:
    return lambda future: future.set_exception(error)


def _attempt(connection: sqlite3.Connection, job: _Job[T]) -> Outcome[T]:
    """Do one job inside the transaction, and return how its future must end after the commit.

    A refused job changes nothing and does not affect the others. A database error fails all of them.
    """
    connection.execute("SAVEPOINT job")
    try:
        result = job.work(connection)
    except sqlite3.Error:
        raise
    except Exception as error:  # handed to the caller, who is waiting for it in another thread
        connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")
        return _refuse(error)
    connection.execute("RELEASE job")
    return lambda future: future.set_result(result)
