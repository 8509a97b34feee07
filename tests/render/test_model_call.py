"""The steps of a model call that an agent's policy and the gateway share."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from loopwright.render.recording.model_call import (
    answer_budget,
    answer_sampling,
    planned_turns,
    prepared_call,
    record_turns,
    with_call_ids,
)
from loopwright.render.recording.recorder import Recorder, Said
from loopwright.testing.chars import CharRenderer
from loopwright.types import FinishReason, Generation, Message, Parsed, Sampling, ToolCall

RENDERER = CharRenderer()
HI: tuple[Message, ...] = ({"role": "user", "content": "Hi"},)


def said(*ids: int) -> Said:
    generation = Generation(ids, (-0.5,) * len(ids), (0,) * len(ids), FinishReason.STOP)
    return Said(generation, {"role": "assistant", "content": RENDERER.text(ids)}, f"answer {ids}")


@pytest.mark.parametrize(
    ("room", "limits", "budget"),
    [(10, (), 10), (10, (None, 4), 4), (3, (8, None), 3), (0, (8,), 0), (-5, (8, 2), 0), (10, (-1,), 0)],
)
def test_a_budget_is_the_least_of_the_room_and_the_limits(
    room: int, limits: tuple[int | None, ...], budget: int
) -> None:
    assert answer_budget(room, *limits) == budget


def test_an_answer_is_sampled_with_all_of_the_runs_settings() -> None:
    """Also with a setting that is added later: each here has a value of its own."""
    own = Sampling(0.5, 100, 3, 0.9, (7, 8), ("end",), 1)
    assert all(getattr(own, field.name) != field.default for field in fields(Sampling))
    expected = replace(own, max_new_tokens=5, stop_token_ids=(7, 8, 9), stop=("end", "halt"), seed=2)
    assert answer_sampling(own, (8, 9), 5, 2, ("halt", "end")) == expected


def test_calls_without_an_id_are_named_by_their_place() -> None:
    parsed = Parsed("", "", (ToolCall("a", "{}", "known"), ToolCall("b", "{}", "")))
    named = with_call_ids(parsed, lambda place: f"call_{place}")
    assert [call.id for call in named.tool_calls] == ["known", "call_1"]


async def test_a_call_is_recorded_at_its_last_step_alone() -> None:
    recorder = Recorder()
    history = recorder.history(HI, ())
    prepared = await prepared_call(recorder, history, (), RENDERER, 100)
    turns = planned_turns(recorder, prepared, [said(5, 6), said(), said(7)])
    assert len(recorder) == 0
    record_turns(recorder, prepared, turns)
    assert [turn.ids.tolist() for turn in recorder.turns] == [[5, 6], [7]]
    assert {turn.prompt_ids for turn in recorder.as_turns()} == {prepared.prompt}
