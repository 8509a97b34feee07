"""Asking the engine, and going on when it was interrupted: an agent sees one slower call."""

from __future__ import annotations

from loopwright.errors import EngineError
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import FinishReason, GenerateRequest, Generation

MOST_IDLE_ABORTS = 8
"""An engine that gives back nothing so often in a row is not being paused: it is broken."""


async def sample(
    engine: StreamingEngine, request: GenerateRequest, on_part: OnPart, *, early: bool = True
) -> Generation:
    """The whole answer. `on_part` hears every token of it once, before this returns; `early`: as it is sampled."""
    whole: Generation | None = None
    idle = 0
    while whole is None or whole.finish is FinishReason.ABORT:
        part = await _heard(engine, request if whole is None else request.after(whole), on_part, early)
        idle = 0 if part.ids else idle + 1
        whole = part if whole is None else whole.then(part)
        left = request.sampling.max_new_tokens - len(whole.ids)
        if whole.finish is FinishReason.ABORT and left <= 0:
            whole = Generation(whole.ids, whole.logprobs, whole.versions, FinishReason.LENGTH)
        if idle >= MOST_IDLE_ABORTS:
            raise EngineError(f"request {request.id} was aborted {idle} times in a row", remedy="look at the engine")
    return whole


async def _heard(engine: StreamingEngine, request: GenerateRequest, on_part: OnPart, early: bool) -> Generation:
    """What the engine returns, after `on_part` has heard all of it: an engine may keep the last tokens to itself."""
    told = 0

    def tell(part: Generation) -> None:
        nonlocal told
        told += len(part.ids)
        on_part(part)

    whole = await engine.generate(request, tell if early else None)
    if told < len(whole.ids):
        on_part(Generation(whole.ids[told:], whole.logprobs[told:], whole.versions[told:], whole.finish))
    return whole
