"""Thoughts: told in every dialect, and echoed whole, trimmed, not at all, or by somebody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from loopwright.gateway.call import Answer, Call
from loopwright.gateway.dialects import AnthropicMessages, ChatCompletions, Dialect, Head, Responses
from loopwright.render.recording.prepared import Prepared
from loopwright.render.recording.recorder import Recorder, Said
from loopwright.testing.chars import CharRenderer, encode_chars
from loopwright.types import (
    ChainStart,
    ContentDelta,
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
DELTAS = [
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
ANSWER = Answer("id", 7, PARSED, FinishReason.STOP, prompt_tokens=9, completion_tokens=5)


def echoed(dialect: Dialect, body: Any) -> Message:
    """What a client that sends the answer back is understood to have heard."""
    match dialect:
        case ChatCompletions():
            history = {"messages": [ASK, body["choices"][0]["message"]]}
        case Responses():
            history = {"input": [ASK, *body["output"]]}
        case _:
            history = {"messages": [ASK, {"role": "assistant", "content": body["content"]}]}
    return dialect.read(history).messages[1]


def normal(message: Message) -> dict[str, Any]:
    calls = [(call["id"], call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("dialect", [ChatCompletions(), Responses(), AnthropicMessages()])
def test_what_a_dialect_writes_it_reads_back(dialect: Dialect) -> None:
    body = json.loads(json.dumps(dialect.reply(Call((ASK,)), [ANSWER])))
    assert normal(echoed(dialect, body)) == normal(PARSED.message)


def test_streamed_thoughts_come_in_blocks_of_their_own() -> None:
    stream = AnthropicMessages().stream(Call((ASK,)), Head("id", 7, 9, 0))
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
