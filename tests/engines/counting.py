"""An engine that counts: the token at position p of a stream is p, whoever samples it.

So a stream shows at once whether it was continued in the right place. The engine shows its tokens early, and dies when
a test wants it to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from loopwright.core.partial_answer import joined
from loopwright.engines.worker import Worker
from loopwright.errors import EngineError, EngineLostError
from loopwright.ports import OnPart
from loopwright.types import (
    IN_PLACE,
    NOTHING_YET,
    UNKNOWN_CAPACITY,
    EngineCapacity,
    FinishReason,
    GenerateRequest,
    Generation,
    PauseMode,
    ProbeAnswer,
)

PART = 4


class CountingEngine:
    """A `StreamingEngine`. Each token takes `seconds`; tokens are shown in parts of four."""

    def __init__(self, *, version: int = 0, seconds: float = 0.0, number: int = 0) -> None:
        self.version = version
        self.number = number
        self.requests: list[GenerateRequest] = []
        self.counted = 0
        """Tokens, of all requests together."""
        self.loads: list[tuple[int, Any]] = []
        self.dead = asyncio.Event()
        self._seconds = seconds
        self._frozen: PauseMode | None = None
        self._live: dict[str, bool] = {}

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        self._require_alive()
        self.requests.append(request)
        while self._frozen is not None:
            await self._tick()
        self._live[request.id] = False
        try:
            return await self._count(request, on_part)
        finally:
            del self._live[request.id]

    async def abort(self, request_id: str) -> None:
        self._require_alive()
        if request_id in self._live:
            self._live[request_id] = True

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        self._require_alive()
        self._frozen = mode
        if mode is PauseMode.ABORT:
            self._live = dict.fromkeys(self._live, True)
        while self._live and mode is not PauseMode.KEEP:
            await self._tick()

    async def resume(self) -> None:
        self._require_alive()
        self._frozen = None

    async def load(self, version: int, update: Any = IN_PLACE) -> None:
        self._require_alive()
        self.loads.append((version, update))
        self.version = version

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        self._require_alive()
        return ProbeAnswer((-0.5,) * (len(request.prompt_ids) - 1), NOTHING_YET)

    async def _count(self, request: GenerateRequest, on_part: OnPart | None) -> Generation:
        whole, shown = NOTHING_YET, 0
        for position in range(len(request.prompt_ids), len(request.prompt_ids) + request.sampling.max_new_tokens):
            await self._tick()
            while self._frozen is PauseMode.KEEP:
                await self._tick()
            if self._live[request.id]:
                return whole
            whole = joined([whole, Generation((position,), (-0.5,), (self.version,), FinishReason.ABORT)])
            self.counted += 1
            if on_part is not None and len(whole.ids) - shown == PART:
                on_part(whole.since(shown))
                shown = len(whole.ids)
        return Generation(whole.ids, whole.logprobs, whole.versions, FinishReason.LENGTH)

    async def _tick(self) -> None:
        await asyncio.sleep(self._seconds)
        self._require_alive()

    def _require_alive(self) -> None:
        if self.dead.is_set():
            raise EngineLostError("the engine is dead", remedy="none: the test killed it")


class Nursery:
    """Launches counting engines, and remembers them: `engines[-1]` is the youngest."""

    def __init__(
        self,
        *,
        seconds: float = 0.001,
        make: Callable[..., CountingEngine] = CountingEngine,
        capacity: EngineCapacity = UNKNOWN_CAPACITY,
    ) -> None:
        self.engines: list[CountingEngine] = []
        self.stillborn = 0
        self._seconds = seconds
        self._make = make
        self._capacity = capacity

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[Worker]:
        if self.stillborn:
            self.stillborn -= 1
            raise EngineError("it cannot start", remedy="none: the test wants it so")
        engine = self._make(seconds=self._seconds, number=len(self.engines))
        self.engines.append(engine)

        async def died() -> str:
            await engine.dead.wait()
            return f"engine {engine.number} says goodbye"

        try:
            yield Worker(engine, died, self._capacity)
        finally:
            engine.dead.set()
