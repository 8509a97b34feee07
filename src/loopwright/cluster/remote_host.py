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
from ray.exceptions import RayError, RaySystemError, RayTaskError

from loopwright.cluster.answers import Answer, Ending, opened
from loopwright.cluster.host import FAREWELL, Host, SignOfLife, Started
from loopwright.cluster.output import OutputFiles
from loopwright.core.together import GRACE_SECONDS, or_left_behind
from loopwright.errors import ClusterRoomError, ConfigError, RemoteError, WorkerLostError

BEAT_SECONDS = 1.0
MAX_CALLS = 100_000
"""How many calls an actor takes at a time. Ray's default is 1000: a beat would wait behind them, and a busy actor look
dead."""
CLOSE_SECONDS = 20.0
"""How long a part may take to close. After that its process is killed."""

LAST_LINES = 10
LAST_CHARACTERS = 2000
"""How much of what a lost actor wrote last is part of the error."""
NO_ROOM_REMEDY = "give the cluster more or larger nodes, and resume; or raise cluster.room_seconds"
NODE_LOST = "its node has died"
"""What Ray says of an actor whose node is gone; it has no field for it."""

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
        self._node_lost = False
        self._positions: tuple[int, ...] = ()

    @property
    def started(self) -> Started:
        if self._started is None:
            raise RuntimeError(f"{self.name} has not started yet")
        return self._started

    @property
    def is_alive(self) -> bool:
        return not self._ended.done()

    async def arrive(self, seconds: float) -> None:
        """Wait until the actor has room, and its process says where it is. Raises ClusterRoomError after `seconds`."""
        try:
            async with asyncio.timeout(seconds) as limit:
                self._started = await self._reached(self._handle.introduce.remote())
        except TimeoutError:
            if not limit.expired():
                raise
            raise ClusterRoomError(f"{self.name} found no room", remedy=NO_ROOM_REMEDY) from None

    async def start(self, opening: bytes, memory: int | None, seconds: float) -> None:
        """Open the part. Raises what that raises, and WorkerLostError if the process dies meanwhile, or if the part is
        not open after `seconds`."""
        try:
            async with asyncio.timeout(seconds) as limit:
                await self._asked(self._handle.start, opening, memory)
        except TimeoutError:
            if not limit.expired():
                raise
            self._end(f"it was not ready within {seconds:g} s, which cluster.start_seconds allows")
            raise self._lost() from None

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
        with suppress(WorkerLostError):
            while self.is_alive:
                await self._hear()
                await asyncio.sleep(BEAT_SECONDS)

    async def hear_farewell(self) -> None:
        """Wait until it is lost, or ends itself and says why."""
        with suppress(WorkerLostError):
            self._end(await self._reached(self._handle.farewell.remote()))

    async def close(self) -> None:
        """Close the part, and end its process. One that does not end in time is killed."""
        try:
            with suppress(WorkerLostError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._asked(self._handle.close)
                    await self._hear(last=True)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.is_alive:
            self._ended.set_result("it was ended")
        with suppress(RayError, ValueError):
            ray.kill(self._handle)

    async def _hear(self, *, last: bool = False) -> None:
        beat: SignOfLife = await self._reached(self._handle.beat.remote(last=last))
        self._positions = beat.positions
        if beat.output:
            self._on_output(beat.output)

    async def _asked(self, method: Any, *args: Any) -> Any:
        try:
            reference = method.remote(*args)
        except RayError:
            raise
        except Exception as error:  # the user's objects may fail in whatever way
            raise self._not_sent(_first_line(error), str(error)) from None
        answer: Answer = await self._reached(reference)
        if isinstance(answer, Ending):
            self._end(answer.words)
            raise self._lost()
        return opened(answer)

    async def _reached(self, reference: Any) -> Any:
        """What Ray brings for `reference`. It is waited for no longer than the actor lives: a call on a cluster that
        was shut down would never end."""
        answer = asyncio.ensure_future(_awaited(reference))
        try:
            await asyncio.wait((answer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._lost()
            value = answer.result()
        except asyncio.CancelledError:
            if self._started is not None and self.is_alive:
                # Dropping the reference would let the method run on.
                ray.cancel(reference)
                waited = (answer, self._ended)
                await asyncio.wait(waited, timeout=GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            raise
        except RayTaskError as error:
            # The actor lives: a value could not be sent to it or back.
            raise self._not_sent(_first_line(error.cause), str(error)) from None
        except RayError as error:
            if isinstance(error, RaySystemError) and isinstance(error.client_exc, Exception):
                # The actor lives here too: its answer came, and holds a class that only the actor has.
                raise self._not_sent(_first_line(error), str(error)) from None
            self._node_lost = NODE_LOST in str(error)
            self._end(f"{type(error).__name__}: {'its node is lost' if self._node_lost else _first_line(error)}")
            raise self._lost() from error
        finally:
            answer.cancel()
        self._heard_at = self._loop.time()
        return value

    def _not_sent(self, why: str, trace: str) -> RemoteError:
        return RemoteError(
            f"{self.name}: a value could not be sent: {why}",
            remedy="use values that can be pickled, of classes that the actors and the driver can import",
            trace=trace,
        )

    def _end(self, words: str) -> None:
        """Note that the actor is lost. What it wrote last is read here, if it was on this machine."""
        if not self.is_alive:
            return
        if self._started is not None and self._started.node == ray.get_runtime_context().get_node_id():
            if output := OutputFiles(self._started.output, self._positions).rest():
                self._on_output(output)
            lines = output.decode("utf-8", "replace").splitlines()[-LAST_LINES:]
            last = "\n".join(lines)[-LAST_CHARACTERS:].strip()
            if last and words not in last:
                words = f"{words}; its last output:\n{last}"
        self._ended.set_result(words)

    def _lost(self) -> WorkerLostError:
        words = self._ended.result()
        return WorkerLostError(
            f"{self.name} is lost: {words}", remedy="nothing to do: it is started again", node_lost=self._node_lost
        )


@asynccontextmanager
async def launched(
    name: str,
    opening: bytes,
    options: Mapping[str, Any],
    *,
    memory: int | None,
    on_output: OnOutput,
    start_seconds: float,
    room_seconds: float,
) -> AsyncIterator[RemoteHost]:
    """Start an actor with Ray's `options`, which may wait `room_seconds` for room, and the part on it, which may take
    `start_seconds` to open. Leaving the context in any way closes the part, and ends the actor."""
    fixed = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": MAX_CALLS}
    actor = ray.remote(concurrency_groups={FAREWELL: 1})(Host)
    handle = actor.options(**options, **fixed).remote(name)
    host = RemoteHost(name, handle, on_output)
    hearing: list[asyncio.Task[None]] = []
    try:
        await host.arrive(room_seconds)
        hearing = [asyncio.create_task(host.hear_farewell(), name=name)]
        await host.start(opening, memory, start_seconds)
        hearing.append(asyncio.create_task(host.keep_hearing(), name=name))
        try:
            yield host
        finally:
            if host.is_alive:
                await host.close()
    finally:
        host.kill()
        for task in hearing:
            task.cancel()
        if hearing:
            await asyncio.wait(hearing)


async def _awaited(reference: Any) -> Any:
    return await reference


def _first_line(error: object) -> str:
    """Of what Ray says: the rest are addresses of its own processes."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
