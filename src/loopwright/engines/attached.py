"""Attaches a run to an engine that somebody else has started, of whatever kind.

It is never started or ended by us. While we use it, we hold the lease on its weights. If it goes away, we wait for it
at the same address, but not for ever. One that is back has lost its weights and the lease, so it counts as a new engine
of the pool, which loads the current weights before it serves. In the end we leave it resumed, and give the lease back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.worker import Worker
from loopwright.errors import EngineLostError, LoopwrightError
from loopwright.ports import StreamingEngine
from loopwright.serve.lease import LeaseHolder
from loopwright.types import PauseMode

LEASE_SECONDS = 60.0
BEATS_PER_LEASE = 4
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
FAREWELL_SECONDS = 10.0

log = logging.getLogger("loopwright")


class AttachableEngine(StreamingEngine, Protocol):
    """An engine that several runs may find at its address. `workers` is how many processes of it receive weights."""

    @property
    def workers(self) -> int: ...

    async def model(self) -> ModelCard: ...

    async def lease(self, holder: LeaseHolder, seconds: float) -> None:
        """Take or renew the lease on its weights. Raises LeaseError if another run has it, and EngineLostError if the
        engine is gone, or is another one than before."""
        ...

    async def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Attachment:
    """Which engine is attached to which run. `connect` connects to it. `check` raises if its model is not the run's. An
    engine that is away is waited for, up to `wait_seconds`. `carry` is the way of new weights to it."""

    url: str
    connect: Callable[[], AbstractAsyncContextManager[AttachableEngine]]
    holder: LeaseHolder
    check: Callable[[str, ModelCard], Awaitable[None]]
    wait_seconds: float
    lease_seconds: float = LEASE_SECONDS
    carry: Callable[[AttachableEngine], StreamingEngine] = lambda engine: engine


@asynccontextmanager
async def attached_engine(attachment: Attachment) -> AsyncIterator[Worker]:
    """The engine, while the run uses it. Raises LeaseError if another run holds it or has taken it over."""
    async with AsyncExitStack() as stack:
        engine = await _found(attachment, stack)
        stack.push_async_callback(_leave, engine)
        beating = asyncio.create_task(_renew(engine, attachment), name=f"lease on {attachment.url}")
        stack.push_async_callback(_ended, beating)
        # Whoever used it before may have left it paused, or with requests that nobody reads any more.
        await engine.pause(PauseMode.ABORT)
        await engine.resume()
        yield Worker(attachment.carry(engine), lambda: asyncio.shield(beating))


async def _found(attachment: Attachment, stack: AsyncExitStack) -> AttachableEngine:
    """Connect to the engine and take its lease, as soon as it answers. `stack` closes the connection."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + attachment.wait_seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(deadline), AsyncExitStack() as trying:
                engine = await trying.enter_async_context(attachment.connect())
                await attachment.check(attachment.url, await engine.model())
                await engine.lease(attachment.holder, attachment.lease_seconds)
                stack.push_async_exit(trying.pop_all())
                return engine
        except (EngineLostError, TimeoutError) as error:
            if loop.time() + pause > deadline:
                raise EngineLostError(
                    f"no engine answered at {attachment.url} within {attachment.wait_seconds:g} s",
                    remedy="start it, or correct rollout.engine.urls",
                ) from error
            if pause == FIRST_PAUSE_SECONDS:
                log.warning("waiting for the engine at %s", attachment.url)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _renew(engine: AttachableEngine, attachment: Attachment) -> str:
    """Renew the lease until the engine cannot be reached any more. Returns why."""
    while True:
        await asyncio.sleep(attachment.lease_seconds / BEATS_PER_LEASE)
        try:
            await engine.lease(attachment.holder, attachment.lease_seconds)
        except EngineLostError as lost:
            return lost.message


async def _ended(beating: asyncio.Task[str]) -> None:
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


async def _leave(engine: AttachableEngine) -> None:
    """Leave the engine to others as it was found: resumed, and without a lease. If it is gone, there is nothing to
    leave."""
    with suppress(LoopwrightError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await engine.resume()
            await engine.release()
