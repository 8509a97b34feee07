"""Large prompts: refused by their size where that is enough, and encoded beside the event loop where it is not."""

from __future__ import annotations

import json
import threading

import pytest
from gateway_house import house, renderer

from loopwright.agents.policy import EnginePolicy
from loopwright.render.vocabulary import Vocabulary
from loopwright.testing import ScriptedEngine
from loopwright.types import FinishReason, Message, Sampling

HUGE = "many words " * 400_000
LARGE = "some words and more " * 5_000


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What is encoded: its length, and whether the event loop waits for it."""
    seen: list[tuple[int, bool]] = []
    encode = Vocabulary._encode_text

    def watched(self: Vocabulary, text: str) -> tuple[int, ...]:
        seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return encode(self, text)

    monkeypatch.setattr(Vocabulary, "_encode_text", watched)
    return seen


def user(text: str) -> Message:
    return {"role": "user", "content": text}


async def test_what_cannot_fit_is_refused_without_being_encoded(encoded: list[tuple[int, bool]]) -> None:
    async with house(["Hello."]) as h:
        session = await h.session()
        path = f"/{session}/v1/chat/completions"
        response = await h.post(path, {"messages": [user(HUGE)]})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        first = [user("hi"), await h.chat(session, [user("hi")])]
        going_on = await h.post(path, {"messages": [*first, user(HUGE)]})
        assert going_on.json()["error"]["code"] == "context_length_exceeded"
        assert h.gateway.sessions.find(session).unfit is not None
    assert max(length for length, _ in encoded) < 1000


async def test_an_agent_s_prompt_that_cannot_fit_is_not_encoded_either(encoded: list[tuple[int, bool]]) -> None:
    policy = EnginePolicy(ScriptedEngine([]), renderer(), Sampling(), "a", 4096)
    assert (await policy.reply([user(HUGE)])).finish is FinishReason.LENGTH
    assert "at least" in str(policy.fault)
    assert encoded == []


async def test_a_large_prompt_is_encoded_beside_the_event_loop(encoded: list[tuple[int, bool]]) -> None:
    async with house(["Hello.", "Yes."], max_context=10**6) as h:
        session = await h.session()
        first = [user(LARGE), await h.chat(session, [user(LARGE)])]
        await h.chat(session, [*first, user(f"{LARGE} again")])
        counted = await h.post(f"/{session}/v1/messages/count_tokens", {"messages": [user(f"{LARGE}!")]})
        assert counted.json()["input_tokens"] > 10_000
        assert len(h.chains()) == 1
    policy = EnginePolicy(ScriptedEngine([[5, *renderer().stop_token_ids]]), renderer(), Sampling(), "a", 10**6)
    await policy.reply([user(f"{LARGE} else")])
    large = [on_loop for length, on_loop in encoded if length > 50_000]
    assert large == [False] * 4


@pytest.mark.parametrize("where", ["arguments", "thought", "tools"])
async def test_so_is_one_whose_bulk_is_no_content(where: str, encoded: list[tuple[int, bool]]) -> None:
    called = {"name": "write", "arguments": json.dumps({"file": LARGE if where == "arguments" else ""})}
    said = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": called}]}
    result = {"role": "tool", "tool_call_id": "c", "content": LARGE[:60_000] if where == "thought" else "done"}
    thought = {"reasoning_content": LARGE} if where == "thought" else {}
    function = {"name": "write", "parameters": {"description": LARGE if where == "tools" else ""}}
    async with house(["Hello."], max_context=10**6) as h:
        session = await h.session()
        tools = [{"type": "function", "function": function}]
        await h.chat(session, [user("hi"), {**said, **thought}, result], tools=tools)
    assert [on_loop for length, on_loop in encoded if length > 50_000] == [False]
