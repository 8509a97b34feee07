"""Keeps several engines alive and on the current weights.

The invariant: a running engine was proven to have the weights that were loaded last (W1). Weights go to all engines,
and an engine that starts later gets them before it serves. An update ends with each engine on the new version or
counted as lost (W2). If no engine can be kept alive any more, all waiting callers get the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from loopwright.core.together import together
from loopwright.core.wakeup import WakeUp
from loopwright.engines.supervised import Supervised
from loopwright.engines.worker import Launch
from loopwright.errors import BudgetError, EngineLostError, LoopwrightError
from loopwright.ports import StreamingEngine
from loopwright.types import IN_PLACE, WeightUpdate

MAX_RESTARTS = 3
LOAD_SECONDS = 600.0
"""How long an engine may take to load an update and to be proven."""

Prove = Callable[[str, StreamingEngine, int], Awaitable[None]]
"""Raises if the engine of that name does not serve the weights of that version."""


async def unproven(name: str, engine: StreamingEngine, version: int) -> None:
    """For engines that compute nothing."""


class Pool:
    """The engines that `launches` start, supervised. `on_death` gets the last words of each engine that is lost."""

    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        max_restarts: int,
        on_death: Callable[[str], object],
        prove: Prove,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self.changed = WakeUp()
        self._prove = prove
        self._load_seconds = load_seconds
        self._members = [
            Supervised(str(number), launch, self._join, on_death, max_restarts=max_restarts)
            for number, launch in enumerate(launches)
        ]
        self._keepers: list[asyncio.Task[None]] = []
        self._loading = asyncio.Lock()
        self._update: WeightUpdate = IN_PLACE
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

    async def load(self, version: int, update: WeightUpdate) -> None:
        """Give all engines new weights, and prove that they have them. An engine that fails is lost, and replaced.

        Raises only if no engine took the update and one of them refused it. The pool keeps its version then.
        """
        async with self._loading:
            running = [(member, member.engine) for member in self._members if member.engine is not None]
            refusals = await together(self._loaded(member, engine, version, update) for member, engine in running)
            refused = [(*asked, refusal) for asked, refusal in zip(running, refusals, strict=True) if refusal]
            if refused and len(refused) == len(self.running):
                raise refused[0][2]
            self._version, self._update = version, update
            for member, engine, refusal in refused:
                member.lose(engine, refusal.message)

    async def _loaded(
        self, member: Supervised, engine: StreamingEngine, version: int, update: WeightUpdate
    ) -> LoopwrightError | None:
        """Update one engine. Gives the error if the engine refused the update or did not pass its proof."""
        try:
            await self._updated(member, engine, version, update)
        except EngineLostError as lost:
            member.lose(engine, lost.message)
        except LoopwrightError as refusal:
            return refusal
        return None

    async def _updated(self, member: Supervised, engine: StreamingEngine, version: int, update: WeightUpdate) -> None:
        try:
            async with asyncio.timeout(self._load_seconds):
                await engine.load(version, update)
                await self._prove(member.name, engine, version)
        except TimeoutError:
            raise EngineLostError(
                f"engine {member.name} did not load the weights of version {version} within {self._load_seconds:g} s",
                remedy="see its log",
            ) from None

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
            elif engine.version != self._version or self._update != IN_PLACE:
                await self._updated(member, engine, self._version, self._update)
            member.engine = engine
        self.changed.notify()

    def _failure(self) -> BaseException | None:
        """The error that ended the pool. An exceeded restart budget ends it only when no engine is left; any other
        error ends it at once."""
        ended = [keeper.exception() for keeper in self._keepers if keeper.done() and not keeper.cancelled()]
        fatal = next((error for error in ended if not isinstance(error, BudgetError)), None)
        return fatal or (ended[0] if ended and len(ended) == len(self._keepers) else None)
