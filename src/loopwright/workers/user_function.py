"""Calls the user's own function so that it cannot damage the run.

A sync function runs in a pool of worker processes: it cannot block the event loop, and after its deadline the worker is
killed. A sync function without an import path runs in a thread of this process: after its deadline nobody waits for
it. An async function runs in the event loop. In all cases the caller gets what `read` makes of the returned value, or
an error that names the function. A cancelled call leaves no worker and no task running.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
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
"""How long a worker may take to start, in addition to the function's own deadline."""

WHY_WORKERS_DIE = (
    "look for os._exit, a crash in native code, or too little memory; if your own script starts the run, put that "
    'behind `if __name__ == "__main__":`, because workers import the script'
)


class Blame(Protocol):
    """Makes the errors about a function that failed. It is sent to the worker, so it must be picklable."""

    @property
    def path(self) -> str:
        """The import path of the function."""
        ...

    def raised(self, error: BaseException, function: Callable[..., Any]) -> LoopwrightError:
        """The error if it raised `error`. The frame that called `function` must call this, because the traceback starts
        below that frame."""
        ...

    def late(self, seconds: float) -> LoopwrightError:
        """The error if it was stopped after `seconds`."""
        ...

    def died(self, how: BaseException) -> LoopwrightError:
        """The error if its worker process died."""
        ...


class UserFunction:
    """The function that `blame` names, relative to `base`. Use it as `async with`.

    Its workers see the harmless part of our environment, and the variables in `env`. `given` is the function
    itself, if only this process has it.
    """

    def __init__(
        self,
        blame: Blame,
        base: Path,
        timeout_seconds: float = 10.0,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        given: Callable[..., Any] | None = None,
    ) -> None:
        self._blame = blame
        self._given = given
        self._env = dict(env or {})
        self._base = base
        self._timeout = timeout_seconds
        self._workers = workers
        # At most as many calls enter the pool as it has workers, so a deadline does not include time in its queue.
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
        """Return `read(function(*args))`. `read` runs in the same process as the function, so it must be picklable."""
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
            # If this await is cancelled, the call is cancelled too, and pebble kills its worker.
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
            # The whole pool is broken, for example because an idle worker was killed. It accepts no more calls.
            await self._close(self._pool)
        if self._pool is None:
            # Workers are spawned, not forked: a fork would copy the engine's threads and torch's state.
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
    """The base of objects that hold a user's function: it is open as long as they are. Use it as `async with`."""

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


def start_worker(path: str, base: Path, env: Mapping[str, str]) -> None:
    """Runs in the worker when it starts. So the first call's deadline does not include the function's imports.

    The worker has inherited our environment. Variables that it may not see are removed before the user's code is loaded
    (S3), and `env` is added. The worker ends with its parent, so a killed run leaves no judger behind, not even one
    that hangs.
    """
    for name in os.environ.keys() - child_environment(os.environ).keys():
        del os.environ[name]
    os.environ.update(env)
    threading.Thread(target=_exit_after_parent, daemon=True).start()
    load_function(path, base)


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def call_in_worker(blame: Blame, base: Path, read: Callable[[Any], T], args: tuple[Any, ...]) -> T:
    """Runs in the worker. Whatever the user's code does, the result or the error that is sent back can be pickled."""
    function = load_function(blame.path, base)
    try:
        value = function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # This includes a cancellation: nobody can cancel work in a worker, so the function itself raised it.
        raise blame.raised(error, function) from None
    return _read(value, read, blame, function)


def _read(value: Any, read: Callable[[Any], T], blame: Blame, function: Callable[..., Any]) -> T:
    """Call `read` on the value. The value may have its own code, which may fail like the function itself."""
    try:
        return read(value)
    except LoopwrightError:
        raise
    except Exception as error:
        raise blame.raised(error, function) from None


def _stops_the_caller(error: BaseException) -> bool:
    """Whether the error must end the task that awaits the function. If nobody cancelled this task, a CancelledError
    came from something that the function awaited, and is a failure like any other."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
