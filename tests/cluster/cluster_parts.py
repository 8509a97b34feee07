"""Parts that actors hold in these tests."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from pebble import ProcessPool

from loopwright.core.environment import child_environment


class UnpicklableError(Exception):
    """An exception of a user, which no other process can read."""

    def __init__(self, *, count: int) -> None:
        super().__init__(f"it was {count}")
        self.lock = asyncio.Lock()


class Part:
    """Does what its caller wants to see done on an actor."""

    secret = "an attribute that is no method"

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    async def echo(self, value: Any) -> Any:
        return value

    async def pid(self) -> int:
        return os.getpid()

    async def fail(self, error: str) -> NoReturn:
        raise {
            "unpicklable": UnpicklableError(count=3),
            "KeyboardInterrupt": KeyboardInterrupt("stop"),
            "SystemExit": SystemExit(4),
            "CancelledError": asyncio.CancelledError("not by you"),
            "StopIteration": StopIteration("no more"),
            "ValueError": ValueError("bad"),
        }[error]

    async def hold(self, file: str) -> None:
        """Hold a file until cancelled; letting go takes a while."""
        _write(file, "held")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            os.unlink(file)

    async def run_on(self, file: str) -> None:
        """Ignore the first cancellation, and write to a file when it came."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            _write(file, "cancelled")

    async def say(self, text: str) -> None:
        print(text, flush=True)

    async def die(self, words: str) -> None:
        print(words, file=sys.stderr, end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    async def eat(self, size: int, blocks: bool) -> None:
        """Take memory, and keep it: with the event loop free, or blocked."""
        self.kept.append(b"x" * size)
        if blocks:
            time.sleep(60)  # noqa: ASYNC251 (it blocks on purpose)
        await asyncio.Event().wait()

    async def forget_time(self) -> None:
        await asyncio.Event().wait()

    async def environment(self) -> dict[str, str]:
        return dict(os.environ)

    async def childrens_environment(self) -> dict[str, str]:
        """What a child process sees that our own code starts."""
        show = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
        return await asyncio.to_thread(_shown, show, child_environment(os.environ))

    async def put_through_ray(self, value: Any) -> Any:
        import ray

        return await asyncio.to_thread(lambda: ray.get(ray.put(value)))

    async def environment_of_lock(self) -> object:
        import threading

        return threading.Lock()

    async def of_a_class_of_its_own(self) -> object:
        """Something of a class that the driver cannot import."""
        module = types.ModuleType("only_there")
        module.__dict__["Theirs"] = type("Theirs", (), {"__module__": "only_there"})
        sys.modules["only_there"] = module
        return module.Theirs()

    async def children(self) -> list[int]:
        """Start a child, one in a session of its own, and a worker for a user's function. Returns their numbers."""
        sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
        self.pool = ProcessPool(max_workers=1, context=multiprocessing.get_context("spawn"))
        worker = await asyncio.wrap_future(self.pool.schedule(os.getpid))
        return [_started(sleep), _started(sleep, start_new_session=True), worker]


def _write(file: str, text: str) -> None:
    Path(file).write_text(text)


def _started(command: list[str], **options: Any) -> int:
    return subprocess.Popen(command, **options).pid


def _shown(command: list[str], env: dict[str, str]) -> dict[str, str]:
    import json

    shown: dict[str, str] = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    return shown


@asynccontextmanager
async def open_part(closed: str = "") -> AsyncIterator[Part]:
    """`closed` is a file that is written when the part is closed."""
    try:
        yield Part()
    finally:
        if closed:
            _write(closed, "closed")


@asynccontextmanager
async def cannot_open(file: str = "model") -> AsyncIterator[Part]:
    if file:
        raise FileNotFoundError(2, "there is no such model", file)
    yield Part()


@asynccontextmanager
async def dies_while_opening() -> AsyncIterator[Part]:
    print("a library is missing", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    yield Part()


@asynccontextmanager
async def takes_memory_while_opening() -> AsyncIterator[Part]:
    part = Part()
    await part.eat(500 << 20, True)
    yield part


def needs_lock(lock: object) -> AbstractAsyncContextManager[Part]:
    return open_part()


@asynccontextmanager
async def opens_for_ever(held: str) -> AsyncIterator[Part]:
    part = Part()
    await part.hold(held)
    yield part


@asynccontextmanager
async def hangs_after_the_first_start(mark: str, blocks: bool) -> AsyncIterator[Part]:
    """As if it waited for a machine that is gone: in the event loop, or blocking it."""
    if os.path.exists(mark):  # noqa: ASYNC240
        print("waiting for a license", flush=True)
        if blocks:
            time.sleep(300)  # noqa: ASYNC251 (it blocks on purpose)
        await asyncio.Event().wait()
    _write(mark, "")
    yield Part()


@asynccontextmanager
async def engine_whose_second_start_fails(mark: str, *given: Any) -> AsyncIterator[Any]:
    """The third one is good again."""
    from loopwright.build.hosted_engine import hosted_engine

    started = os.path.getsize(mark) if os.path.exists(mark) else 0  # noqa: ASYNC240
    _write(mark, "x" * (started + 1))
    if started == 1:
        raise OSError(98, "the address is in use")
    async with hosted_engine(*given) as engine:
        yield engine
