"""Keeps several engines alive and on the current weights.

The invariant: a running engine has the weights that were loaded last. Weights go to all engines, and an engine that
starts later gets them before it serves. If no engine can be kept alive any more, all waiting callers get the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from loopwright.core.together import together
from loopwright.core.wakeup import WakeUp
from loopwright.engines.supervised import Supervised
from loopwright.engines.worker import Launch
from loopwright.errors import BudgetError, EngineLostError
from loopwright.ports import StreamingEngine
from loopwright.types import WeightFile

MAX_RESTARTS = 3


class Pool:
    """The engines that `launches` start, supervised. `on_death` gets the last words of each engine that is lost."""

    def __init__(self, launches: Sequence[Launch], *, max_restarts: int, on_death: Callable[[str], object]) -> None:
        self.changed = WakeUp()
        self._members = [Supervised(launch, self._join, on_death, max_restarts=max_restarts) for launch in launches]
        self._keepers: list[asyncio.Task[None]] = []
        self._loading = asyncio.Lock()
        self._weights: Mapping[str, Any] | WeightFile | None = None
        self._version: int | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Start all engines, and wait until they serve. Leaving ends them."""
        try:
            for member in self._members:
                keeper = asyncio.create_task(member.keep())
                keeper.add_done_callback(lambda _: self.changed.notify())
                self._keepers.append(keeper)
            await self.until(lambda: len(self.running) == len(self._members))
            yield self
        finally:
            for keeper in self._keepers:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)

    @property
    def version(self) -> int:
        return self._version or 0

    @property
    def running(self) -> list[Supervised]:
        return [member for member in self._members if member.engine is not None]

    async def load(self, version: int, weights: Mapping[str, Any] | WeightFile | None) -> None:
        async with self._loading:
            await self.each(lambda engine: engine.load(version, weights))
            self._version, self._weights = version, weights

    async def each(self, command: Callable[[StreamingEngine], Awaitable[None]]) -> None:
        """Run a command on every engine. An engine that is lost meanwhile is replaced by one that does not need it."""

        async def one(member: Supervised, engine: StreamingEngine) -> None:
            try:
                await command(engine)
            except EngineLostError:
                member.lose(engine)

        await together(one(member, member.engine) for member in self._members if member.engine is not None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`. Raises the error that ended the pool, if it ended."""
        await self.changed.until(lambda: condition() or self._failure() is not None)
        if not condition() and (failure := self._failure()) is not None:
            raise failure

    async def _join(self, member: Supervised, engine: StreamingEngine) -> None:
        """Load the current weights into an engine, and let it serve. The lock ensures that it misses no newer
        weights."""
        async with self._loading:
            if self._version is None:
                self._version = engine.version
            elif engine.version != self._version or self._weights is not None:
                await engine.load(self._version, self._weights)
            member.engine = engine
        self.changed.notify()

    def _failure(self) -> BaseException | None:
        """The error that ended the pool. An exceeded restart budget ends it only when no engine is left; any other
        error ends it at once."""
        ended = [keeper.exception() for keeper in self._keepers if keeper.done() and not keeper.cancelled()]
        fatal = next((error for error in ended if not isinstance(error, BudgetError)), None)
        return fatal or (ended[0] if ended and len(ended) == len(self._keepers) else None)
