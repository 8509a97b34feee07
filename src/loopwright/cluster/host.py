"""The process of an actor: it holds one part of a run, and calls its methods.

Ray knows this one class, whatever the part is. The constructor does nothing, because Ray turns its exceptions into
text: `start` opens the part, and its errors arrive as they are. Only a cancellation leaves a method as an exception.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from loopwright.cluster.answers import Answer, Returned, raised
from loopwright.core.environment import child_environment
from loopwright.errors import WorkerLostError

WATCH_SECONDS = 0.5
"""How often the process looks at its own memory."""
FAREWELL_SECONDS = 1.0
"""How long a process that ends itself waits until its last answers are sent."""
OUTPUT_BYTES = 65_536
"""How much of its output a process tells at a time."""
EXIT_CODE = 70

Opening = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the part. It is pickled, so it must be importable: a function of ours with its arguments."""


@dataclass(frozen=True, slots=True)
class Started:
    """Where the part runs. `incarnation` is another one after every start; `output` are the files that the process
    writes to, on its own node."""

    incarnation: str
    pid: int
    node: str
    address: str
    output: tuple[str, ...]


class Host:
    """An actor. `name` is for people."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._part: Any = None
        self._stack = AsyncExitStack()
        self._incarnation = uuid.uuid4().hex
        self._over: asyncio.Future[WorkerLostError] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None
        self._read = dict.fromkeys(_output_files(), 0)

    async def start(self, opening: bytes, memory: int | None) -> Answer:
        """Open the part. `opening` is a pickled `Opening`. A process that takes more than `memory` bytes ends
        itself: Ray does not enforce it."""

        async def begin() -> Started:
            _forget_secrets()
            _hide_main()
            if memory is not None:
                self._watching = asyncio.create_task(self._watch(memory))
            open_part: Opening = cloudpickle.loads(opening)
            self._part = await self._stack.enter_async_context(open_part())
            node = ray.get_runtime_context().get_node_id()
            return Started(self._incarnation, os.getpid(), node, ray.util.get_node_ip_address(), tuple(self._read))

        return await self._answered(begin())

    async def call(self, method: str, *args: Any) -> Answer:
        """Call an asynchronous method of the part."""

        async def made() -> Any:
            return await getattr(self._part, method)(*args)

        return await self._answered(made())

    async def beat(self) -> bytes:
        """Say that the process lives, with what it has written since the last time."""
        return b"".join(self._new_output(file) for file in self._read)

    async def close(self) -> Answer:
        """Close the part. The process goes on until Ray ends it."""

        async def leave() -> None:
            await self._stack.aclose()

        return await self._answered(leave())

    async def _answered(self, work: Awaitable[Any]) -> Answer:
        """Do the work. Whatever it raises is an answer, unless somebody has cancelled this call: an exception such as
        KeyboardInterrupt would end the event loop of the actor, and all its calls would hang."""
        task = asyncio.ensure_future(_guarded(work))
        try:
            await asyncio.wait((task, self._over), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        if task.done():
            return task.result()
        task.cancel()
        return raised(self._over.result())

    async def _watch(self, limit: int) -> None:
        while (used := _memory_bytes()) <= limit:  # noqa: ASYNC110 (the kernel tells nobody)
            await asyncio.sleep(WATCH_SECONDS)
        error = WorkerLostError(
            f"{self._name} used {used >> 20:,} MiB of memory, and its memory_per_actor is {limit >> 20:,} MiB",
            remedy="raise memory_per_actor, or see what its code keeps in memory",
        )
        print(f"loopwright: {error.message}", file=sys.stderr, flush=True)
        self._over.set_result(error)
        await asyncio.sleep(FAREWELL_SECONDS)
        os._exit(EXIT_CODE)

    def _new_output(self, file: str) -> bytes:
        try:
            with open(file, "rb") as opened:
                opened.seek(self._read[file])
                new = opened.read(OUTPUT_BYTES)
        except OSError:
            return b""
        self._read[file] += len(new)
        return new


async def _guarded(work: Awaitable[Any]) -> Answer:
    try:
        return Returned(await work)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return raised(error)


def _forget_secrets() -> None:
    """Remove what this process has inherited and must not see (S3). The part gets its keys in the start call."""
    kept = child_environment(os.environ)
    for name in [name for name in os.environ if name not in kept and not name.startswith("RAY_")]:
        del os.environ[name]


def _hide_main() -> None:
    """Ray's main module is not for the processes that this one spawns: multiprocessing would import it there, and with
    it all of Ray."""
    main = sys.modules["__main__"]
    main.__spec__ = None
    vars(main).pop("__file__", None)


def _memory_bytes() -> int:
    """What this process holds in memory itself, without files that it shares."""
    fields = Path("/proc/self/statm").read_text("ascii").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _output_files() -> tuple[str, ...]:
    """The files behind stdout and stderr."""
    links = (os.readlink(f"/proc/self/fd/{number}") for number in (1, 2))
    return tuple(dict.fromkeys(link for link in links if os.path.isfile(link)))
