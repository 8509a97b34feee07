"""A time limit for each model call. It is counted on the side that knows whether the call is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loopwright.core.timeouts import ClockTimeout
from loopwright.errors import LoopwrightError, OutOfTimeError
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import GenerateRequest, Generation


class TimedClient:
    """A `ModelClient` over the engines of this process. It ends a call when the caller's seconds are used up, and
    reports how long the call was held.

    `held` reads the clock of held seconds: for how many seconds in total the engines have answered nobody.
    """

    def __init__(self, engine: StreamingEngine, held: Callable[[], float] = lambda: 0.0) -> None:
        self._engine = engine
        self._held = held

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        before = self._held()
        if request.seconds is None:
            return self._told(await self._engine.generate(request, on_part), before)
        limit = ClockTimeout(request.seconds, self._own_time)
        try:
            async with limit:
                generation = await self._engine.generate(request, on_part)
        except TimeoutError:
            if not limit.expired():
                raise
            raise OutOfTimeError(
                f"request {request.id} was not answered within the {request.seconds:g} s that its agent had left",
                remedy="raise the agent's time limit, or let it ask for less",
                held=(before, self._held()),
            ) from None
        except LoopwrightError as error:
            error.facts["held"] = (before, self._held())
            raise
        return self._told(generation, before)

    def _told(self, sampled: Generation, before: float) -> Generation:
        # Not `replace`: it takes as long as the whole call does here.
        held = before, self._held()
        streams = sampled.ids, sampled.logprobs, sampled.versions
        return Generation(*streams, sampled.finish, held, sampled.constrained, sampled.alternatives)

    def _own_time(self) -> float:
        return asyncio.get_running_loop().time() - self._held()
