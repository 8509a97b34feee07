"""A remote engine that somebody else restarts, behind a `StreamingEngine` that survives the restarts.

The invariant is the same as in `controller.py`: each token of an answer is sampled once, and is stamped with the
version that sampled it (T4). If the engine is lost, a call continues from the tokens that arrived. It waits for an
engine at the same address, but not for long, because the caller has a deadline too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from loopwright.core.partial_answer import PartialAnswer
from loopwright.engines.controller import MAX_BREAKS
from loopwright.engines.stopwatch import Stopwatch
from loopwright.errors import EngineLostError
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import IN_PLACE, GenerateRequest, Generation, PauseMode, ProbeAnswer, WeightUpdate
from loopwright.types.sampling import PART_TOKENS

WAIT_SECONDS = 60.0
"""How long a call waits for a lost engine. Clients ask again after 120 s of silence."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0


class RestartableEngine:
    """A `StreamingEngine` over one that may be lost and come back. A call waits for at most `wait_seconds` without a
    token. With `keeps_all`, the answers that nobody hears while they are sampled are streamed too."""

    def __init__(self, engine: StreamingEngine, wait_seconds: float = WAIT_SECONDS, *, keeps_all: bool = False) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds
        self._keeps_all = keeps_all
        self._held = Stopwatch()

    @property
    def version(self) -> int:
        return self._engine.version

    def held_seconds(self) -> float:
        """For how many seconds in total calls have waited for a lost engine."""
        return self._held.seconds()

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Without `on_part`, and if it does not keep all, a lost answer is sampled again from its beginning."""
        if on_part is None and self._keeps_all:
            # Nobody waits for single tokens.
            request, on_part = replace(request, part_tokens=PART_TOKENS), _unheard
        answer = None if on_part is None else PartialAnswer(request, on_part)
        try:
            # No token has arrived yet, so there is nothing to join. Most calls end here.
            return await self._engine.generate(request, None if answer is None else answer.hear)
        except EngineLostError as lost:
            return await self._go_on(answer, request, lost)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._engine.pause(mode)

    async def resume(self) -> None:
        await self._engine.resume()

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        await self._engine.load(version, update)

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        return await self._engine.probe(request)

    async def _go_on(self, heard: PartialAnswer | None, request: GenerateRequest, lost: EngineLostError) -> Generation:
        """Ask until an engine answers. The waiting time starts again with every token, but only a few times: an answer
        that loses its engine again and again may be what kills it."""
        answer, on_part = heard or PartialAnswer(request), None if heard is None else heard.hear
        loop = asyncio.get_running_loop()
        deadline, pause, breaks = loop.time() + self._wait_seconds, FIRST_PAUSE_SECONDS, 1
        while not answer.is_full:
            if loop.time() + pause > deadline or breaks > MAX_BREAKS:
                raise lost
            with self._held.running():
                await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            before = answer.tokens
            try:
                return answer.add(await self._engine.generate(answer.rest(), on_part))
            except EngineLostError as again:
                lost = again
            if answer.tokens > before:
                deadline, pause, breaks = loop.time() + self._wait_seconds, FIRST_PAUSE_SECONDS, breaks + 1
        return answer.cut_by_length()


def _unheard(part: Generation) -> None:
    """The answer keeps its parts by itself."""
