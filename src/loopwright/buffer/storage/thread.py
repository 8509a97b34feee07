"""A SQLite connection that lives in a thread of its own, with group commit.

Work that was asked for is done, whether or not its caller still waits. What one turn of the event loop asks for goes
into one transaction, with all else that waits when the thread comes round, and nobody hears of success before that
transaction is committed. When it cannot be committed, everyone in it is told so, nothing of it is stored, and the
thread goes on. When even that fails, the connection is of no use any more: everyone from then on is told why, so that
nobody waits for ever.
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
    """Work, and the future of its caller, who may be gone by the time that it is done."""

    work: Work[T]
    future: asyncio.Future[T]


Outcome = Callable[[asyncio.Future[T]], None]
"""Ends a caller's future."""


class SqliteThread:
    """Runs work on one connection, in the order in which it was asked for, in the event loop that started it."""

    def __init__(self, name: str, path: Path, opener: Opener) -> None:
        self._path = path
        self._opener = opener
        self._jobs: SimpleQueue[list[_Job[Any]] | None] = SimpleQueue()
        self._arrived: list[_Job[Any]] = []
        self._opened: Future[None] = Future()
        self._accepting = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    async def start(self) -> None:
        """Open the connection; returns when it is usable, or raises."""
        self._opened.set_running_or_notify_cancel()
        self._thread.start()
        await asyncio.wrap_future(self._opened)
        self._accepting = True

    async def stop(self) -> None:
        """Finish what was asked for, and close."""
        self._accepting = False
        self._submit()
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def do(self, work: Work[T]) -> T:
        """The work's result, once it is committed."""
        if not self._accepting:
            raise RunError(f"{self._path} is not open", remedy="use the storage inside its `async with` block")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._arrived:
            loop.call_soon(self._submit)
        self._arrived.append(_Job(work, future))
        return await future

    def _submit(self) -> None:
        """Hand over what one turn of the event loop has asked for, at once: a thread that woke up in between would take
        the interpreter from those who are still to ask, and commit for each of them."""
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
        """Do what is submitted until the thread is to end."""
        broken: Exception | None = None
        while batch := self._next_batch():
            try:
                outcomes = self._refusals(batch, broken) if broken else self._commit(connection, batch)
            except Exception as error:  # handed to all callers from now on
                broken = error
                outcomes = self._refusals(batch, error)
            _tell(batch, outcomes)

    def _next_batch(self) -> list[_Job[Any]]:
        """All jobs that wait, at least one; empty when the thread is to end."""
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
    """Wake every event loop once, not once per caller: that would cost more than the work."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome[Any]]]] = {}
    for job, outcome in zip(batch, outcomes, strict=True):
        waiting.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, pairs in waiting.items():
        # A loop that has ended has nobody who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_end, pairs)


def _end(pairs: Sequence[tuple[asyncio.Future[Any], Outcome[Any]]]) -> None:
    for future, outcome in pairs:
        if not future.done():
            outcome(future)


def _refuse(error: Exception) -> Outcome[Any]:
    return lambda future: future.set_exception(error)


def _attempt(connection: sqlite3.Connection, job: _Job[T]) -> Outcome[T]:
    """Do one job inside the transaction, and say how its future is to end after the commit.

    A job that is refused leaves no trace and does not disturb the others; trouble with the database ends them all.
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
