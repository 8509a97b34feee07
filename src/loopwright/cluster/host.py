"""The process of an actor: it holds one part of a run, and calls its methods.

Ray knows this one class, whatever the part is. The constructor does nothing, because Ray turns its exceptions into
text: `start` opens the part, and its errors arrive as they are. Only a cancellation leaves a method as an exception.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from loopwright.cluster.answers import Answer, Ending, Returned, raised
from loopwright.cluster.output import output_of_this_process
from loopwright.core.environment import computing_environment
from loopwright.core.redaction import names_a_secret

WATCH_SECONDS = 0.5
"""How often the process looks at its own memory."""
FAREWELL_SECONDS = 1.0
"""How long a process that ends itself waits until its last answers are sent."""
EXIT_CODE = 70
FAREWELL = "farewell"
"""Ray's name for the calls that have an event loop of their own in the process."""

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


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """A sign of life: what the process has written since the last one, and how far its output files were read."""

    output: bytes
    positions: tuple[int, ...]


class Host:
    """An actor. `name` is for people."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._part: Any = None
        self._stack = AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[str] = self._loop.create_future()
        self._farewell: Future[str] = Future()
        self._output = output_of_this_process()

    async def introduce(self) -> Started:
        """Say where this is, before anything of the part is done that might end the process."""
        node = ray.get_runtime_context().get_node_id()
        return Started(uuid.uuid4().hex, os.getpid(), node, ray.util.get_node_ip_address(), self._output.files)

    async def start(self, opening: bytes, memory: int | None) -> Answer:
        """Open the part. `opening` is a pickled `Opening`. A process that takes more than `memory` bytes ends
        itself: Ray does not enforce it."""

        async def begin() -> None:
            _forget_secrets()
            _hide_gpus()
            _hide_main()
            if memory is not None:
                # The event loop may be busy with what takes the memory.
                threading.Thread(target=self._watch, args=(memory,), name="memory", daemon=True).start()
            open_part: Opening = cloudpickle.loads(opening)
            self._part = await self._stack.enter_async_context(open_part())

        return await self._answered(begin())

    async def call(self, method: str, *args: Any) -> Answer:
        """Call an asynchronous method of the part."""

        async def made() -> Any:
            return await getattr(self._part, method)(*args)

        return await self._answered(made())

    async def beat(self, *, last: bool = False) -> SignOfLife:
        """Say that the process lives, with what it has written since the last time. `last`: everything."""
        output = self._output.rest() if last else self._output.new()
        return SignOfLife(output, self._output.positions)

    @ray.method(concurrency_group=FAREWELL)  # type: ignore[untyped-decorator]
    async def farewell(self) -> str:
        """Wait until the process ends itself. Returns why, also while the part blocks its event loop."""
        return await asyncio.shield(asyncio.wrap_future(self._farewell))

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
            await asyncio.wait((task, self._ending), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        if task.done():
            return task.result()
        task.cancel()
        return Ending(self._ending.result())

    def _watch(self, limit: int) -> None:
        while (used := _memory_bytes()) <= limit:
            time.sleep(WATCH_SECONDS)
        words = f"it used {used >> 20:,} MiB of memory, and its memory_per_actor is {limit >> 20:,} MiB"
        print(f"{self._name}: {words}", file=sys.stderr, flush=True)
        self._farewell.set_result(words)
        self._loop.call_soon_threadsafe(self._ending.set_result, words)
        time.sleep(FAREWELL_SECONDS)
        os._exit(EXIT_CODE)


async def _guarded(work: Awaitable[Any]) -> Answer:
    try:
        return Returned(await work)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return raised(error)


def _forget_secrets() -> None:
    """Remove what this process has inherited and must not see (S3). The part gets its keys in the start call. Ray has
    read its token, and looks at its other variables again."""
    kept = computing_environment(os.environ)
    for name in list(os.environ):
        if name not in kept and (names_a_secret(name) or not name.startswith("RAY_")):
            del os.environ[name]


def _hide_gpus() -> None:
    """Show no GPU to a process that has reserved none, before torch is imported. Ray would let it see all of them, and
    each such process would take the first."""
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


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
