"""Asks the engine, and continues an interrupted answer, so that an agent sees one slower call."""

from __future__ import annotations

from loopwright.core.partial_answer import PartialAnswer
from loopwright.errors import EngineError
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import FinishReason, GenerateRequest, Generation

MOST_IDLE_ABORTS = 8
"""An engine that returns nothing this often in a row is broken, not paused."""


async def sample_answer(
    engine: StreamingEngine, request: GenerateRequest, on_part: OnPart, *, early: bool = True
) -> Generation:
    """The whole answer. `on_part` gets every token once before this returns; with `early`, while it is sampled."""
    answer, idle = PartialAnswer(request, on_part), 0
    while True:
        before = answer.tokens
        so_far = answer.add(await engine.generate(answer.rest(), answer.hear if early else None))
        if so_far.finish is not FinishReason.ABORT:
            return so_far
        if answer.is_full:
            return answer.cut_by_length()
        idle = 0 if answer.tokens > before else idle + 1
        if idle >= MOST_IDLE_ABORTS:
            raise EngineError(f"request {request.id} was aborted {idle} times in a row", remedy="look at the engine")
