"""A pool of one or more engines, as one engine that does not die.

The invariants: a call ends with tokens that were each sampled once, whatever happened to the engines on the way, and
each is stamped with the version that sampled it (T4). An engine serves only under the current weights. When a pause or
a death cuts an answer short, it goes on from the tokens that are here; only a pause hands it back, and only to those
who can go on from it themselves. A pool that cannot be kept alive fails every call with its budget's error (R4).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from loopwright.core.together import together
from loopwright.engines.bell import Bell
from loopwright.engines.routing import Router
from loopwright.engines.supervised import Supervised
from loopwright.engines.worker import Launch
from loopwright.errors import BudgetError, EngineLostError
from loopwright.ports import StreamingEngine
from loopwright.types import NOTHING_YET, FinishReason, GenerateRequest, Generation, PauseMode, WeightFile

MAX_RESTARTS = 3
MAX_BREAKS = 3
"""How often one answer may lose its engine. After that the request itself is a suspect."""
STRAGGLER_SECONDS = 2.0
"""How long an aborted answer may be on its way."""


@dataclass(slots=True, eq=False)
class _Call:
    """A request, what there is of its answer, and why it may have to end early."""

    request: GenerateRequest
    part: Generation = NOTHING_YET
    begun: bool = False
    aborted: bool = False
    cut: bool = False
    asking: asyncio.Future[Generation] | None = None

    @property
    def ends(self) -> bool:
        """Whether it returns with what it has: it was aborted by name, or a pause hands it back."""
        return self.aborted or (self.cut and self.request.resumable)


class RolloutController:
    """An `Engine` over the engines that `launches` start. Made by `open`, which also supervises them.

    `on_death` hears the last words of each engine that is lost.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        max_restarts: int = MAX_RESTARTS,
        on_death: Callable[[str], object] = lambda words: None,
    ) -> None:
        self._bell = Bell()
        self._members = [Supervised(launch, self._join, on_death, max_restarts=max_restarts) for launch in launches]
        self._keepers: list[asyncio.Task[None]] = []
        self._router = Router()
        self._calls: set[_Call] = set()
        self._paused: PauseMode | None = None
        self._loading = asyncio.Lock()
        self._weights: Mapping[str, Any] | WeightFile | None = None
        self._version: int | None = None
        self._steps = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        launches: Sequence[Launch],
        *,
        max_restarts: int = MAX_RESTARTS,
        on_death: Callable[[str], object] = lambda words: None,
    ) -> AsyncIterator[Self]:
        """Start all engines, and give the controller when they serve. Leaving ends them."""
        controller = cls(launches, max_restarts=max_restarts, on_death=on_death)
        try:
            await controller._start()
            yield controller
        finally:
            await controller._stop()

    @property
    def version(self) -> int:
        return self._version or 0

    @property
    def steps(self) -> int:
        """How often tokens came: while this grows, some engine is at work."""
        return self._steps

    async def generate(self, request: GenerateRequest) -> Generation:
        call = _Call(request)
        self._calls.add(call)
        try:
            return await self._answer(call)
        finally:
            self._calls.remove(call)
            self._bell.ring()

    async def abort(self, request_id: str) -> None:
        for call in self._calls:
            call.aborted |= call.request.id == request_id
        self._bell.ring()
        await self._each(lambda engine: engine.abort(request_id))

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Calls that come after this wait. With `abort`, all resumable ones that came before have returned."""
        self._paused = mode
        if mode is PauseMode.DRAIN:
            await self._until(lambda: not any(call.begun for call in self._calls))
        for call in self._calls if mode is PauseMode.ABORT else ():
            call.cut = True
        self._bell.ring()
        await self._each(lambda engine: engine.pause(mode))
        if mode is PauseMode.ABORT:
            await self._cut_stragglers()

    async def resume(self) -> None:
        self._paused = None
        for call in self._calls:
            call.cut = False
        await self._each(lambda engine: engine.resume())
        self._bell.ring()

    async def load(self, version: int, weights: Mapping[str, Any] | WeightFile | None = None) -> None:
        """An engine that is away meanwhile loads the same before it serves again."""
        async with self._loading:
            await self._each(lambda engine: engine.load(version, weights))
            self._version, self._weights = version, weights

    # One call.

    async def _answer(self, call: _Call) -> Generation:
        breaks = 0
        while (member := await self._admit(call)) is not None:
            try:
                await self._ask(member, call)
            except EngineLostError:
                breaks += 1
                if breaks > MAX_BREAKS:
                    raise
                continue
            member.answered()
            self._steps += 1
            if call.part.finish is not FinishReason.ABORT or call.ends or call.request.resumable:
                break
        return call.part

    async def _admit(self, call: _Call) -> Supervised | None:
        """Wait for a place in the pool; None if the call has to end instead."""
        await self._until(lambda: call.ends or (self._lets_in(call) and bool(self._running())))
        if call.ends:
            return None
        call.begun = True
        return self._router.choose(call.request.id, self._running())

    def _lets_in(self, call: _Call) -> bool:
        """A drain lets those finish that had begun, also when they have to begin again elsewhere."""
        return self._paused is None or (self._paused is PauseMode.DRAIN and call.begun)

    async def _ask(self, member: Supervised, call: _Call) -> None:
        """Have one engine go on with the answer. What it shows is kept, also if it dies."""
        before, engine = call.part, member.engine
        if engine is None:
            raise RuntimeError("a call was given to a place without an engine")

        def keep(part: Generation) -> None:
            call.part = call.part.then(part)
            self._steps += 1

        call.asking = asyncio.ensure_future(engine.generate(call.request.after(before), keep))
        member.busy += 1
        try:
            await asyncio.wait((call.asking,))
        finally:
            member.busy -= 1
            if not call.asking.done():
                call.asking.cancel()
                await asyncio.wait((call.asking,))
        if call.asking.cancelled():
            return
        try:
            call.part = before.then(call.asking.result())
        except EngineLostError:
            member.lose(engine)
            self._bell.ring()
            raise

    async def _cut_stragglers(self) -> None:
        """A request that reached its engine after the pause waits there. It is taken back."""

        def stragglers() -> list[_Call]:
            return [call for call in self._calls if call.ends]

        try:
            async with asyncio.timeout(STRAGGLER_SECONDS):
                await self._until(lambda: not stragglers())
        except TimeoutError:
            for call in stragglers():
                if call.asking is not None:
                    call.asking.cancel()

    # The pool.

    async def _start(self) -> None:
        for member in self._members:
            keeper = asyncio.create_task(member.keep())
            keeper.add_done_callback(lambda _: self._bell.ring())
            self._keepers.append(keeper)
        await self._until(lambda: len(self._running()) == len(self._members))

    async def _stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _join(self, member: Supervised, engine: StreamingEngine) -> None:
        """Bring an engine to the current weights, and let it serve. The lock keeps newer weights from passing it by."""
        async with self._loading:
            if self._version is None:
                self._version = engine.version
            elif engine.version != self._version or self._weights is not None:
                await engine.load(self._version, self._weights)
            member.engine = engine
        self._bell.ring()

    async def _each(self, command: Callable[[StreamingEngine], Awaitable[None]]) -> None:
        """Have every engine do something. One that is lost on the way is replaced by one that need not do it."""

        async def one(member: Supervised, engine: StreamingEngine) -> None:
            try:
                await command(engine)
            except EngineLostError:
                member.lose(engine)

        await together(one(member, member.engine) for member in self._members if member.engine is not None)

    def _running(self) -> list[Supervised]:
        return [member for member in self._members if member.engine is not None]

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`, or raise what keeps the pool from ever meeting it."""
        await self._bell.until(lambda: condition() or self._failure() is not None)
        if not condition() and (failure := self._failure()) is not None:
            raise failure

    def _failure(self) -> BaseException | None:
        """What ended the supervision: anything but a budget ends it for all; a budget, when no place is left."""
        ended = [keeper.exception() for keeper in self._keepers if keeper.done() and not keeper.cancelled()]
        fatal = next((error for error in ended if not isinstance(error, BudgetError)), None)
        return fatal or (ended[0] if ended and len(ended) == len(self._keepers) else None)
