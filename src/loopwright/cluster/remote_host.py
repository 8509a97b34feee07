"""The driver's side of one actor: calls that can be cancelled, errors with their types, and whether it lives.

Ray retries nothing: it would run a call twice without a word. Cancelling a call here cancels it on the actor, and waits
until it has cleaned up there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from loopwright.cluster.answers import opened
from loopwright.cluster.host import Host, Started
from loopwright.core.together import or_left_behind
from loopwright.errors import ConfigError, WorkerLostError

BEAT_SECONDS = 1.0
CLOSE_SECONDS = 20.0
"""How long a part may take to close. After that its process is killed."""

OnOutput = Callable[[bytes], object]


def pickled(opening: Callable[..., Any], what: str) -> bytes:
    """The opening as it is sent to actors. Raises ConfigError, which names `what`, if it cannot be sent."""
    try:
        return bytes(cloudpickle.dumps(opening))
    except Exception as error:  # the user's objects may fail in whatever way
        raise ConfigError(
            f"{what} cannot be sent to an actor: {type(error).__name__}: {error}",
            remedy="give it by its import path (`file.py:name`), or keep it here with num_actors: 0",
        ) from error


class RemoteHost:
    """A part of the run on an actor. `launched` makes it."""

    def __init__(self, name: str, handle: Any, on_output: OnOutput) -> None:
        self.name = name
        self._handle = handle
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._started: Started | None = None

    @property
    def started(self) -> Started:
        if self._started is None:
            raise RuntimeError(f"{self.name} has not started yet")
        return self._started

    async def start(self, opening: bytes, memory: int | None) -> None:
        """Open the part. Raises what that raises, and WorkerLostError if the process dies meanwhile."""
        self._started = await self._asked(self._handle.start, opening, memory)

    async def call(self, method: str, *args: Any) -> Any:
        """Call an asynchronous method of the part. Raises what it raises, and WorkerLostError if the actor is lost:
        nobody knows then whether the call was made."""
        work = self._asked(self._handle.call, method, *args)
        return await or_left_behind(work, f"{method} of {self.name}")

    def silent_seconds(self) -> float:
        """For how many seconds nothing was heard of it."""
        return self._loop.time() - self._heard_at

    async def died(self) -> str:
        """Wait until it is lost. Returns its last words."""
        return await asyncio.shield(self._ended)

    async def keep_hearing(self) -> None:
        """Hear from it every second, and hand on what it wrote, until it is lost."""
        while not self._ended.done():
            with suppress(WorkerLostError):
                output = await self._reached(self._handle.beat.remote())
                if output:
                    self._on_output(output)
            await asyncio.sleep(BEAT_SECONDS)

    async def close(self) -> None:
        """Close the part, and end its process. One that does not end in time is killed."""
        with suppress(WorkerLostError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._asked(self._handle.close)
                self._on_output(await self._reached(self._handle.beat.remote()))
        self.kill()

    def kill(self) -> None:
        if not self._ended.done():
            self._ended.set_result("it was ended")
        with suppress(RayError, ValueError):
            ray.kill(self._handle)

    async def _asked(self, method: Any, *args: Any) -> Any:
        return opened(await self._reached(method.remote(*args)))

    async def _reached(self, reference: Any) -> Any:
        """What Ray brings for `reference`. It is waited for no longer than the actor lives: a call on a cluster that
        was shut down would never end."""
        answer = asyncio.ensure_future(_awaited(reference))
        try:
            await asyncio.wait((answer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._lost(self._ended.result())
            value = answer.result()
        except asyncio.CancelledError:
            # Dropping the reference would let the method run on.
            ray.cancel(reference)
            await asyncio.wait((answer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            raise
        except RayError as error:
            words = _words(error)
            if not self._ended.done():
                self._ended.set_result(words)
            raise self._lost(words) from error
        finally:
            answer.cancel()
        self._heard_at = self._loop.time()
        return value

    def _lost(self, words: str) -> WorkerLostError:
        return WorkerLostError(f"{self.name} is lost: {words}", remedy="nothing to do: it is started again")


@asynccontextmanager
async def launched(
    name: str, opening: bytes, options: Mapping[str, Any], *, memory: int | None, on_output: OnOutput
) -> AsyncIterator[RemoteHost]:
    """Start an actor with Ray's `options`, and the part on it. Leaving the context ends both."""
    handle = ray.remote(Host).options(**options, max_restarts=0, max_task_retries=0).remote(name)
    host = RemoteHost(name, handle, on_output)
    hearing: asyncio.Task[None] | None = None
    try:
        await host.start(opening, memory)
        hearing = asyncio.create_task(host.keep_hearing(), name=f"hearing {name}")
        yield host
        await host.close()
    finally:
        host.kill()
        if hearing is not None:
            hearing.cancel()
            await asyncio.wait((hearing,))


async def _awaited(reference: Any) -> Any:
    return await reference


def _words(error: RayError) -> str:
    """The first line of what Ray says: the rest are addresses of its own processes."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
