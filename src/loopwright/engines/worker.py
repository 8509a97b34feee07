"""One engine of a pool, and how to start it: a process, or an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from loopwright.ports import StreamingEngine
from loopwright.types import UNKNOWN_CAPACITY, EngineCapacity


@dataclass(frozen=True, slots=True)
class Worker:
    """A running engine. `died` returns its last words when it has ended. `capacity` is what it can hold, as far as it
    says."""

    engine: StreamingEngine
    died: Callable[[], Awaitable[str]]
    capacity: EngineCapacity = UNKNOWN_CAPACITY


Launch = Callable[[], AbstractAsyncContextManager[Worker]]
"""A context that starts a worker when it is entered, and ends it when it is left. Raises EngineError if the worker
cannot start."""


async def _never() -> str:
    forever: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await forever


def embedded(
    engine: StreamingEngine,
    capacity: EngineCapacity = UNKNOWN_CAPACITY,
    died: Callable[[], Awaitable[str]] = _never,
) -> Launch:
    """A worker in this process. It ends with the process. It cannot be started again: if it can end before, `died`
    raises the error that ends its pool."""

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        yield Worker(engine, died, capacity)

    return launch
