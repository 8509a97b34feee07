"""The user's own function, called so that it can harm nobody.

A sync function runs in a pool of worker processes: it cannot block the event loop, and past its deadline the worker is
killed. A sync function that has no import path runs in a thread of this process: past its deadline nobody waits for it.
An async function runs in the event loop. Either way the caller gets what `read` makes of the returned value, or
an error that says who is to blame, never anything else, and a cancelled call leaves nothing running.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pebble import ProcessExpired, ProcessPool

from loopwright.config.imports import load_symbol
from loopwright.core.environment import child_environment
from loopwright.errors import ConfigError, LoopwrightError
from loopwright.workers.own_thread import in_own_thread

T = TypeVar("T")

START_SECONDS = 60.0
"""How long a worker may take to start, beyond the function's own deadline."""

WHY_WORKERS_DIE = (
    "look for os._exit, a crash in native code, or too little memory; if your own script starts the run, put that "
    'behind `if __name__ == "__main__":`, because workers import the script'
)


class Blame(Protocol):
    """What is said of a function that went wrong. It travels to the worker, so it must survive pickling."""

    @property
    def path(self) -> str:
        """Where the function is found."""
        ...

    def raised(self, error: BaseException, function: Callable[..., Any]) -> LoopwrightError:
        """It raised `error`. To be called by the frame that called `function`: the traceback starts below it."""
        ...

    def late(self, seconds: float) -> LoopwrightError:
        """It was stopped after so long."""
        ...

    def died(self, how: BaseException) -> LoopwrightError:
        """It took its worker process down."""
        ...


class UserFunction:
    """The function that `blame` names, relative to `base`. Use it as `async with`.

    Its workers see of our environment what is harmless, and the variables that `env` names. `given` is the function
    itself, if only this process has it.
    """

    def __init__(
        self,
        blame: Blame,
        base: Path,
        timeout_seconds: float = 10.0,
        workers: int = 1,
        env: Sequence[str] = (),
        given: Callable[..., Any] | None = None,
    ) -> None:
        self._blame = blame
        self._given = given
        self._env = tuple(env)
        self._base = base
        self._timeout = timeout_seconds
        self._workers = workers
        # No more calls enter the pool than it has workers, so a deadline never counts time spent in its queue.
        self._slots = asyncio.Semaphore(workers)
        self._pool: ProcessPool | None = None
        self._awaited: Callable[..., Any] | None = None
        """The function, if it is async."""

    async def __aenter__(self) -> Self:
        function = self._given or load_function(self._blame.path, self._base)
        called = getattr(function, "__call__", None)  # noqa: B004
        if iscoroutinefunction(function) or iscoroutinefunction(called):
            self._awaited = function
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            await self._close(self._pool)

    async def call(self, read: Callable[[Any], T], *args: Any) -> T:
        """`read(function(*args))`. Both run where the function does, so `read` must survive pickling."""
        if self._awaited is not None:
            return await self._await(partial(self._awaited, *args), read, self._awaited)
        async with self._slots:
            if self._given is not None:
                in_thread = partial(in_own_thread, partial(self._given, *args), "loopwright-function")
                return await self._await(in_thread, read, self._given)
            return await self._in_worker(read, args)

    async def _await(
        self, call: Callable[[], Awaitable[Any]], read: Callable[[Any], T], function: Callable[..., Any]
    ) -> T:
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                value = await call()
        except BaseException as error:
            if deadline.expired():
                raise self._blame.late(self._timeout) from error
            if _stops_the_caller(error):
                raise
            raise self._blame.raised(error, function) from error
        return _read(value, read, self._blame, function)

    async def _in_worker(self, read: Callable[[Any], T], args: tuple[Any, ...]) -> T:
        pool = await self._started_pool()
        call = pool.schedule(call_in_worker, args=(self._blame, self._base, read, args), timeout=self._timeout)
        try:
            # Cancelling this await cancels the call, and pebble then kills its worker.
            async with asyncio.timeout(self._timeout + START_SECONDS):
                value: T = await asyncio.wrap_future(call)
                return value
        except TimeoutError as error:
            raise self._blame.late(self._timeout) from error
        except ProcessExpired as error:
            raise self._blame.died(error) from error
        except BrokenProcessPool as error:
            raise self._blame.died(error) from error

    async def _started_pool(self) -> ProcessPool:
        if self._pool is not None and not self._pool.active:
            # It broke as a whole, as when an idle worker was killed, and takes no more calls.
            await self._close(self._pool)
        if self._pool is None:
            # Spawned, not forked: a fork would copy the engine's threads and torch's state into the worker.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(
                max_workers=self._workers,
                initializer=start_worker,
                initargs=(self._blame.path, self._base, self._env),
                context=context,
            )
        return self._pool

    async def _close(self, pool: ProcessPool) -> None:
        if self._pool is pool:
            self._pool = None
        pool.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(pool.join)


class FunctionHolder:
    """Whatever is made of the user's function, open as long as that is. Use it as `async with`."""

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    async def __aenter__(self) -> Self:
        await self._function.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._function.__aexit__(kind, error, trace)


@lru_cache
def load_function(path: str, base: Path) -> Callable[..., Any]:
    """The user's function, loaded once per process."""
    function = load_symbol(path, base)
    if not callable(function):
        raise ConfigError(
            f"{path!r} names {function!r}, which cannot be called", remedy="name a function: `file.py:name`"
        )
    return function


def start_worker(path: str, base: Path, env: Sequence[str]) -> None:
    """Runs in the worker as it starts. Importing what the function needs is not part of its first call's time.

    The worker has inherited our environment: what it shall not see is gone before the user's code is loaded (S3). A run
    that was killed must leave no judge behind, not even a hanging one: the worker ends with its parent.
    """
    for name in os.environ.keys() - child_environment(os.environ, env).keys():
        del os.environ[name]
    threading.Thread(target=_exit_after_parent, daemon=True).start()
    load_function(path, base)


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def call_in_worker(blame: Blame, base: Path, read: Callable[[Any], T], args: tuple[Any, ...]) -> T:
    """Runs in the worker: whatever the user's code does, what travels back can be pickled."""
    function = load_function(blame.path, base)
    try:
        value = function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A cancellation, too: nobody can cancel what a worker does, so it is of the function's own making.
        raise blame.raised(error, function) from None
    return _read(value, read, blame, function)


def _read(value: Any, read: Callable[[Any], T], blame: Blame, function: Callable[..., Any]) -> T:
    """What `read` makes of it. A value may have code of its own, which may fail like the function itself."""
    try:
        return read(value)
    except LoopwrightError:
        raise
    except Exception as error:
        raise blame.raised(error, function) from None


def _stops_the_caller(error: BaseException) -> bool:
    """Whether it is meant for the task that awaits the function. A cancellation that nobody asked this task for came
    from something that the function awaited, and is a failure like any other."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
