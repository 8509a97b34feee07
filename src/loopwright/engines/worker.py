"""One engine of a pool, and how to start it: a process, or an engine that is here already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from loopwright.ports import StreamingEngine


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine that is running. `died` returns when it is not any more, with its last words."""

    engine: StreamingEngine
    died: Callable[[], Awaitable[str]]


Launch = Callable[[], AbstractAsyncContextManager[Worker]]
"""Starts a worker when entered, raising EngineError if it cannot, and ends it when left."""


def embedded(engine: StreamingEngine) -> Launch:
    """A worker that lives and dies with this process."""

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        yield Worker(engine, _never)

    return launch


async def _never() -> str:
    forever: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await forever
