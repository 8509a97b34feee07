"""Attaches a run to an inference server that somebody else has started: vLLM or SGLang.

It is never started or ended by us. If it goes away, we wait for it at the same address, but not for ever. One that is
back counts as a new engine of the pool, which loads the current weights before it serves. In the end we leave it
resumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Worker
from loopwright.errors import EngineLostError, LoopwrightError
from loopwright.ports import StreamingEngine
from loopwright.types import PauseMode

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
LOOK_SECONDS = 5.0
FAREWELL_SECONDS = 10.0

log = logging.getLogger("loopwright")


class ServerEngine(StreamingEngine, Protocol):
    """The adapter of a server."""

    async def model(self) -> ModelCard:
        """Which model is served."""
        ...

    async def look(self) -> None:
        """Raises EngineLostError if the server does not answer."""
        ...


class Connect(Protocol):
    """Makes the adapter of one kind of servers."""

    def __call__(
        self, url: str, key: str | None, *, labels: VersionLabels
    ) -> AbstractAsyncContextManager[ServerEngine]: ...


@dataclass(frozen=True, slots=True)
class ServerAttachment:
    """Which server is attached to which run. `check` raises if its model is not the run's."""

    connect: Connect
    url: str
    key: str | None
    labels: VersionLabels
    check: Callable[[str, ModelCard], Awaitable[None]]
    wait_seconds: float


@asynccontextmanager
async def attached_server(attachment: ServerAttachment) -> AsyncIterator[Worker]:
    """The server, while the run uses it."""
    async with AsyncExitStack() as stack:
        engine = await _found(attachment, stack)
        stack.push_async_callback(_leave, engine)
        # Whoever used it before may have left it paused, or with requests that nobody reads any more.
        await engine.pause(PauseMode.ABORT)
        await engine.resume()
        yield Worker(engine, lambda: _gone(engine))


async def _found(attachment: ServerAttachment, stack: AsyncExitStack) -> ServerEngine:
    """Connect to the server as soon as it answers. `stack` closes the connection."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + attachment.wait_seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(deadline), AsyncExitStack() as trying:
                connecting = attachment.connect(attachment.url, attachment.key, labels=attachment.labels)
                engine = await trying.enter_async_context(connecting)
                await attachment.check(attachment.url, await engine.model())
                stack.push_async_exit(trying.pop_all())
                return engine
        except (EngineLostError, TimeoutError) as error:
            if loop.time() + pause > deadline:
                raise EngineLostError(
                    f"no server answered at {attachment.url} within {attachment.wait_seconds:g} s",
                    remedy="start it, or correct rollout.engine.urls",
                ) from error
            if pause == FIRST_PAUSE_SECONDS:
                log.warning("waiting for the server at %s", attachment.url)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _gone(engine: ServerEngine) -> str:
    """Returns when the server cannot be reached any more, and says why."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await engine.look()
        except EngineLostError as lost:
            return lost.message


async def _leave(engine: ServerEngine) -> None:
    """Leave the server to others resumed. If it is gone, there is nothing to leave."""
    with suppress(LoopwrightError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await engine.pause(PauseMode.ABORT)
            await engine.resume()
