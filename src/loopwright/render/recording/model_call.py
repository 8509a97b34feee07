"""One model call, from a conversation to recorded turns. An agent's policy and the gateway make it in the same steps:

1. `prepared_call` finds the chain that the conversation goes on from, and encodes what is new (T5).
2. `answer_budget` says how many tokens may be sampled, within the room that the context leaves (S5).
3. `answer_sampling` gives the settings of this call; with the prompt they make a `GenerateRequest`.
4. The caller asks its engine for the answer, and reads it. `with_call_ids` names the tool calls in it.
5. `planned_turns` makes turns of what was sampled, and `record_turns` records them. The gateway stores them in between.

Nothing is recorded before the last step, so a call that fails or is cancelled leaves nothing behind. What differs stays
with the callers: who listens, what a failure means, and who goes on with an answer that was cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from loopwright.ports import Renderer
from loopwright.render.recording.matching import History
from loopwright.render.recording.prepared import Prepared
from loopwright.render.recording.recorded import Recorded
from loopwright.render.recording.recorder import Recorder, Said
from loopwright.types import Parsed, Sampling, Tool


def prepared_call(
    recorder: Recorder,
    history: History,
    tools: tuple[Tool, ...],
    renderer: Renderer,
    max_context: int | None,
    *,
    preamble: bool = False,
) -> Coroutine[Any, Any, Prepared]:
    """To be awaited: a large prompt is encoded in a thread.

    A prompt that is sure to have more than `max_context` tokens is a ContextError, and is not encoded. Any other may
    still be too long: look at the room that it leaves.
    """
    return recorder.place(history, tools, preamble=preamble).prepare_beside(renderer, max_context)


def answer_budget(room: int, *limits: int | None) -> int:
    """How many tokens may be sampled where the context leaves `room` and others set limits, or None."""
    for limit in limits:
        if limit is not None and limit < room:
            room = limit
    return max(0, room)


def answer_sampling(own: Sampling, ends: Sequence[int], budget: int, seed: int, stop: Sequence[str] = ()) -> Sampling:
    """A run's own settings for one answer. It also ends at the tokens by which the model ends a turn (`ends`), and at
    the stop strings that the agent asks for (`stop`)."""
    ends = tuple(dict.fromkeys((*own.stop_token_ids, *ends)))
    stop = tuple(dict.fromkeys((*own.stop, *stop)))
    return Sampling(own.temperature, budget, own.top_k, own.top_p, ends, stop, seed)


def with_call_ids(parsed: Parsed, name: Callable[[int], str]) -> Parsed:
    """The reply with an id for each tool call: its own, or what `name` says of its place."""
    if not parsed.tool_calls:
        return parsed
    calls = (replace(call, id=call.id or name(place)) for place, call in enumerate(parsed.tool_calls))
    return replace(parsed, tool_calls=tuple(calls))


def planned_turns(recorder: Recorder, prepared: Prepared, said: Iterable[Said]) -> list[Recorded]:
    """The turns of one call's answers, as they would be recorded now. An answer without tokens is no turn."""
    sampled = [one for one in said if one.generation.ids]
    return [recorder.plan(prepared, one, sample) for sample, one in enumerate(sampled)]


def record_turns(recorder: Recorder, prepared: Prepared, turns: Sequence[Recorded]) -> None:
    """Record what `planned_turns` gave. Nothing may be awaited between the two: another turn would come in between."""
    for turn in turns:
        recorder.add(turn, prepared.history)
