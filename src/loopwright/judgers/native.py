"""The user's own function as a judger.

A sync function runs in a pool of worker processes: it cannot block the event loop, and past its deadline the worker is
killed. An async function runs in the event loop. Either way the caller gets a score or a JudgeError, never anything
else, and a cancelled call leaves nothing running.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from loopwright.config.imports import load_symbol
from loopwright.errors import ConfigError
from loopwright.judgers.verdict import Signature
from loopwright.types import Episode, Scored, Task

START_SECONDS = 60.0
"""How long a worker may take to start, beyond the judger's own deadline."""


class NativeJudger:
    """`def judge(task, episode) -> float | Scored`, sync or async, by import path. Use it as `async with`."""

    def __init__(self, name: str, path: str, base: Path, timeout_seconds: float = 10.0, workers: int = 1) -> None:
        self._signature = Signature(name, path)
        self._base = base
        self._timeout = timeout_seconds
        self._workers = workers
        # No more calls enter the pool than it has workers, so a deadline never counts time spent in its queue.
        self._slots = asyncio.Semaphore(workers)
        self._pool: ProcessPool | None = None

    @property
    def name(self) -> str:
        return self._signature.name

    async def __aenter__(self) -> Self:
        load_judger(self._signature.path, self._base)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            await self._close(self._pool)

    async def judge(self, task: Task, episode: Episode) -> Scored:
        function = load_judger(self._signature.path, self._base)
        if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return await self._await(function, task, episode)
        async with self._slots:
            return await self._in_worker(task, episode)

    async def _await(self, function: Callable[..., Any], task: Task, episode: Episode) -> Scored:
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                value = await function(task, episode)
        except (Exception, SystemExit) as error:
            if deadline.expired():
                raise self._signature.late(self._timeout) from error
            raise self._signature.raised(error, function) from error
        return self._signature.scored(value)

    async def _in_worker(self, task: Task, episode: Episode) -> Scored:
        pool = await self._started_pool()
        call = pool.schedule(call_in_worker, args=(self._signature, self._base, task, episode), timeout=self._timeout)
        try:
            # Cancelling this await cancels the call, and pebble then kills its worker.
            async with asyncio.timeout(self._timeout + START_SECONDS):
                scored: Scored = await asyncio.wrap_future(call)
                return scored
        except TimeoutError as error:
            raise self._signature.late(self._timeout) from error
        except ProcessExpired as error:
            raise self._signature.died(error) from error
        except BrokenProcessPool as error:
            raise self._signature.died(error) from error

    async def _started_pool(self) -> ProcessPool:
        if self._pool is not None and not self._pool.active:
            # It broke as a whole, as when an idle worker was killed, and takes no more calls.
            await self._close(self._pool)
        if self._pool is None:
            # Spawned, not forked: a fork would copy the engine's threads and torch's state into the worker.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(max_workers=self._workers, initializer=die_with_parent, context=context)
        return self._pool

    async def _close(self, pool: ProcessPool) -> None:
        if self._pool is pool:
            self._pool = None
        pool.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(pool.join)


@lru_cache
def load_judger(path: str, base: Path) -> Callable[..., Any]:
    """The user's function, loaded once per process."""
    function = load_symbol(path, base)
    if not callable(function):
        raise ConfigError(
            f"judger path {path!r} names {function!r}, which cannot be called",
            remedy="name a function `judge(task, episode)` that returns a number",
        )
    return function


def die_with_parent() -> None:
    """Runs in the worker as it starts: a run that was killed must leave no judge behind, not even a hanging one."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def call_in_worker(signature: Signature, base: Path, task: Task, episode: Episode) -> Scored:
    """Runs in the worker: whatever the user's code does, what travels back can be pickled."""
    function = load_judger(signature.path, base)
    try:
        value = function(task, episode)
    except (Exception, SystemExit) as error:
        raise signature.raised(error, function) from None
    return signature.scored(value)
