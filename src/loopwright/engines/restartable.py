"""An engine elsewhere that somebody else keeps alive, as one engine that does not die.

The invariant is a pool's (`controller.py`): a call ends with tokens that were each sampled once, and each is stamped
with the version that sampled it (T4). When the engine is lost, a call goes on from the tokens that were heard, and
waits for an engine to answer at the same address, but not for long: whoever asks has a deadline too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import chain
from typing import Any

from loopwright.engines.controller import MAX_BREAKS
from loopwright.engines.stopwatch import Stopwatch
from loopwright.errors import EngineLostError
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import NOTHING_YET, FinishReason, GenerateRequest, Generation, PauseMode, WeightFile

WAIT_SECONDS = 60.0
"""How long a call waits for an engine that went away. Clients ask again after 120 s of silence."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0


class RestartableEngine:
    """A `StreamingEngine` over one that may be lost and come back. A call waits for at most `wait_seconds` without a
    token."""

    def __init__(self, engine: StreamingEngine, wait_seconds: float = WAIT_SECONDS) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds
        self._held = Stopwatch()

    @property
    def version(self) -> int:
        return self._engine.version

    def held_seconds(self) -> float:
        """For how long calls have waited so far for an engine that was lost."""
        return self._held.seconds()

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Who does not listen gets an answer that was lost anew, from its beginning."""
        call = None if on_part is None else _Call(request, on_part)
        try:
            # Nothing was heard yet, so there is nothing to join: most calls go no further.
            return await self._engine.generate(request, None if call is None else call.hear)
        except EngineLostError as lost:
            return await self._go_on(call or _Call(request, None), lost)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._engine.pause(mode)

    async def resume(self) -> None:
        await self._engine.resume()

    async def load(self, version: int, weights: Mapping[str, Any] | WeightFile | None = None) -> None:
        await self._engine.load(version, weights)

    async def _go_on(self, call: _Call, lost: EngineLostError) -> Generation:
        """Ask until an engine answers. Its time begins anew with every token, but not for ever: an answer that loses
        its engine again and again may be what kills it."""
        loop = asyncio.get_running_loop()
        deadline, pause, breaks = loop.time() + self._wait_seconds, FIRST_PAUSE_SECONDS, 1
        while not call.is_whole:
            if loop.time() + pause > deadline or breaks > MAX_BREAKS:
                raise lost
            with self._held.running():
                await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            before = call.tokens
            try:
                return await call.ask(self._engine)
            except EngineLostError as again:
                lost = again
            if call.tokens > before:
                deadline, pause, breaks = loop.time() + self._wait_seconds, FIRST_PAUSE_SECONDS, breaks + 1
        return call.cut_by_length()


class _Call:
    """A request, and what was heard of its answer."""

    def __init__(self, request: GenerateRequest, on_part: OnPart | None) -> None:
        self._request = request
        self._on_part = on_part
        self._parts: list[Generation] = []
        self.tokens = 0

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing left to ask for: the engine was lost when it had only to say that it had ended."""
        return self.tokens > 0 and self.tokens >= self._request.sampling.max_new_tokens

    async def ask(self, engine: StreamingEngine) -> Generation:
        before = self._heard()
        rest = await engine.generate(self._request.after(before), None if self._on_part is None else self.hear)
        return before.then(rest) if before.ids else rest

    def cut_by_length(self) -> Generation:
        heard = self._heard()
        return Generation(heard.ids, heard.logprobs, heard.versions, FinishReason.LENGTH)

    def hear(self, part: Generation) -> None:
        self._parts.append(part)
        self.tokens += len(part.ids)
        if self._on_part is not None:
            self._on_part(part)

    def _heard(self) -> Generation:
        """All of it in one piece. An answer comes token by token: to join it each time would be quadratic."""
        if not self._parts:
            return NOTHING_YET
        streams = ([getattr(part, name) for part in self._parts] for name in ("ids", "logprobs", "versions"))
        ids, logprobs, versions = (tuple(chain.from_iterable(stream)) for stream in streams)
        return Generation(ids, logprobs, versions, FinishReason.ABORT)
