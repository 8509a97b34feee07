"""Thoughts: told in every dialect, and echoed whole, trimmed, not at all, or by somebody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_house import house

from loopwright.gateway.call import Answer, Call
from loopwright.gateway.dialects import AnthropicMessages, ChatCompletions, Dialect, Gemini, Head, Responses
from loopwright.gateway.dialects.anthropic_words import ShownThinking
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.recording.prepared import Prepared
from loopwright.render.recording.recorder import Recorder, Said
from loopwright.testing.chars import CharRenderer, encode_chars
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import (
    ChainStart,
    ContentDelta,
    Delta,
    FinishReason,
    Generation,
    Message,
    Parsed,
    ReasoningDelta,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

ASK: Message = {"role": "user", "content": "Well?"}
REPLY: Message = {"role": "assistant", "content": "Yes.", "reasoning": "I think that it is so."}


def prepared(recorder: Recorder, renderer: CharRenderer, *messages: Message) -> Prepared:
    return recorder.prepare(recorder.history(messages, ()), (), renderer, preamble=False)


def recorded(renderer: CharRenderer) -> Recorder:
    recorder, ids = Recorder(), encode_chars("I think that it is so. Yes.")
    sampled = Generation(ids, (-0.5,) * len(ids), (0,) * len(ids), FinishReason.STOP)
    recorder.add(recorder.plan(prepared(recorder, renderer, ASK), Said(sampled, REPLY, "answer", 0)))
    return recorder


@pytest.mark.parametrize("kept", [None, "", " I think that it is so.\n", "it is so"])
def test_thoughts_may_be_trimmed_or_missing(kept: str | None) -> None:
    renderer = CharRenderer()
    recorder = recorded(renderer)
    going_on = prepared(recorder, renderer, ASK, {**REPLY, "reasoning": kept}, ASK)
    assert going_on.parent == 0
    assert going_on.prompt[: going_on.shared_tokens] == recorder.stream(0)


def test_other_thoughts_are_another_history() -> None:
    renderer = CharRenderer()
    other = prepared(recorded(renderer), renderer, ASK, {**REPLY, "reasoning": "I doubt it."}, ASK)
    assert (other.parent, other.why) == (None, ChainStart.REWRITTEN)


class Rewriting(CharRenderer):
    """Its template would write every history differently."""

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...] | None:
        return None


def test_a_template_that_rewrites_history_starts_a_chain() -> None:
    renderer = Rewriting()
    fresh = prepared(recorded(renderer), renderer, ASK, REPLY, ASK)
    assert (fresh.parent, fresh.why) == (None, ChainStart.TEMPLATE)
    assert fresh.prompt == renderer.render([ASK, REPLY, ASK])


PARSED = Parsed("Let me add.", "Two numbers.", (ToolCall("add", '{"a": 1}', "c0"), ToolCall("add", '{"a": 2}', "c1")))
DELTAS: list[Delta] = [
    ReasoningDelta("Two "),
    ReasoningDelta("numbers."),
    ContentDelta("Let me "),
    ContentDelta("add."),
    ToolCallStart(0, "add", "c0"),
    ToolCallArguments(0, '{"a": 1}'),
    ToolCallEnd(0),
    ToolCallStart(1, "add", "c1"),
    ToolCallArguments(1, '{"a": '),
    ToolCallArguments(1, "2}"),
    ToolCallEnd(1),
]
ASKED = Call((ASK,), echo={"thinking": ShownThinking.WHOLE, "thoughts": True})
"""By a client that wants to know what the model thought."""
ANSWER = Answer("id", 7, PARSED, FinishReason.STOP, prompt_tokens=9, completion_tokens=5)


def echoed(dialect: Dialect, body: Any) -> Message:
    """What a client that sends the answer back is understood to have heard."""
    match dialect:
        case ChatCompletions():
            history = {"messages": [ASK, body["choices"][0]["message"]]}
        case Responses():
            history = {"input": [ASK, *body["output"]]}
        case Gemini():
            asked = {"role": "user", "parts": [{"text": "Hi"}]}
            history = {"contents": [asked, body["candidates"][0]["content"], asked]}
        case _:
            # An assistant's message at the end would be the beginning of the answer.
            history = {"messages": [ASK, {"role": "assistant", "content": body["content"]}, ASK]}
    return dialect.read(history).messages[1]


def normal(message: Message) -> dict[str, Any]:
    calls = [(call["id"], call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("dialect", [ChatCompletions(), Responses(), AnthropicMessages(), Gemini()])
def test_what_a_dialect_writes_it_reads_back(dialect: Dialect) -> None:
    body = json.loads(json.dumps(dialect.reply(ASKED, [ANSWER])))
    assert normal(echoed(dialect, body)) == normal(PARSED.message)


def test_streamed_thoughts_come_in_blocks_of_their_own() -> None:
    stream = AnthropicMessages().stream(ASKED, Head("id", 7, 9, 0))
    said = b"".join([stream.start(), *(stream.delta(0, delta) for delta in DELTAS), stream.end([ANSWER])])
    events = [json.loads(line[6:]) for line in said.decode().splitlines() if line.startswith("data: ")]
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas[:5] == ["thinking_delta"] * 2 + ["signature_delta"] + ["text_delta"] * 2
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]


def test_a_streamed_response_ends_with_all_of_its_items() -> None:
    dialect = Responses()
    stream = dialect.stream(Call((ASK,)), Head("id", 7, 9, 0))
    said = b"".join([stream.start(), *(stream.delta(0, delta) for delta in DELTAS), stream.end([ANSWER])])
    events = [json.loads(line[6:]) for line in said.decode().splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == done
    assert normal(echoed(dialect, events[-1]["response"])) == normal(PARSED.message)


class ThinkingParser:
    """Reads a completion in which thoughts end with a bar."""

    def __init__(self, renderer: ChatTemplateRenderer) -> None:
        self._renderer = renderer
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        self._ids += ids
        return []

    def finish(self) -> list[Delta]:
        thoughts, _, said = self._renderer.text(self._ids).partition("|")
        return [ReasoningDelta(thoughts), ContentDelta(said)]


class ThinkingRenderer(ChatTemplateRenderer):
    """That of a model that thinks. Its template has no words for thoughts, so they are left out of a history."""

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> Any:
        return ThinkingParser(self)

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...] | None:
        return super().extend(stream, [{**message, "reasoning": ""} for message in history], new, tools, most=most)


async def test_a_beginning_that_spells_the_mark_opens_no_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent wrote it, so it is text (T9)."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    monkeypatch.setattr("gateway_house.renderer", lambda: ChatTemplateRenderer(tokenizer))
    async with house(["It is 42."]) as h:
        await h.session()
        begun = {"role": "assistant", "content": "Sure. <think>"}
        body = {"max_tokens": 99, "messages": [{"role": "user", "content": "Well?"}, begun]}
        told = (await h.post("/session-1/v1/messages", body)).json()
        assert told["content"][-1]["text"] == "It is 42."
        assert not h.recorder().turns[0].reply.get("reasoning")


@pytest.mark.parametrize(
    ("thinking", "told"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, "Hm."),
        ({"type": "adaptive"}, "Hm."),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, ""),
        ({"type": "disabled"}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_are_told_to_who_asked_and_recorded_for_all(
    thinking: dict[str, Any] | None, told: str | None, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway_house.renderer", lambda: ThinkingRenderer(tiny_tokenizer()))
    async with (
        house(["Hm.|Yes.", "So.|No."]) as h,
        h.anthropic(await h.session()) as client,
    ):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Well?"}]
        asked: dict[str, Any] = {"model": "m", "max_tokens": 2000} | ({"thinking": thinking} if thinking else {})
        for _ in range(2):
            if streamed:
                async with client.messages.stream(messages=messages, **asked) as stream:
                    reply = await stream.get_final_message()
            else:
                reply = await client.messages.create(messages=messages, **asked)
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "And?"}]
        first = messages[1]["content"]
        thoughts = [block["thinking"] for block in first if block["type"] == "thinking"]
        assert thoughts == ([] if told is None else [told])
        assert first[-1]["text"].strip() == "Yes."
        assert h.recorder().turns[0].reply["reasoning"] == "Hm."
        # One chain: a history without the thoughts is still the one that was recorded.
        assert [chain.start for chain in h.chains()] == [ChainStart.FIRST]
