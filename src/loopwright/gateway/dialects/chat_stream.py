"""Writes a chat completion while it is sampled: a role, deltas, a finish reason, the usage if requested, and an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, sample_id, tool_call_id
from loopwright.gateway.dialects.chat_words import (
    asked_tool,
    chat_usage,
    finish_reason,
    logprobs_body,
    prompt_token_ids,
    token_ids,
)
from loopwright.gateway.dialects.dialect import Head, event
from loopwright.gateway.dialects.openai_errors import openai_error
from loopwright.gateway.freeform import freeform_names, input_of
from loopwright.types import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

DONE = b"data: [DONE]\n\n"
NOT_ENDED: Mapping[str, Any] = {"logprobs": None, "finish_reason": None}
NOTHING_MORE: Mapping[str, Any] = {}


class ChatStream:
    """A `Stream`."""

    def __init__(self, call: Call, head: Head) -> None:
        self._call = call
        self._head = head
        self._freeform = freeform_names(call.tools)
        self._inputs: dict[tuple[int, int], str] = {}
        """The arguments of freeform calls: only a whole call tells its input."""

    def start(self) -> bytes:
        opening = {"role": "assistant", "content": "", "refusal": None}
        prompt = prompt_token_ids(self._call, self._head.prompt_ids)
        return b"".join(self._chunk(sample, opening, more=prompt) for sample in range(self._call.samples))

    def delta(self, sample: int, delta: Delta) -> bytes:
        match delta:
            case ContentDelta(text):
                return self._chunk(sample, {"content": text})
            case ReasoningDelta(text):
                return self._chunk(sample, {"reasoning_content": text})
            case ToolCallStart(index, name, call_id):
                known = call_id or tool_call_id(sample_id(self._head.id, sample), index)
                if name in self._freeform:
                    self._inputs[sample, index] = ""
                called = asked_tool(ToolCall(name, "", known), self._freeform)
                return self._chunk(sample, {"tool_calls": [{"index": index, **called}]})
            case ToolCallArguments(index, text) if (sample, index) in self._inputs:
                self._inputs[sample, index] += text
                return b""
            case ToolCallArguments(index, text):
                return self._chunk(sample, {"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            case ToolCallEnd(index) if (sample, index) in self._inputs:
                whole = {"input": input_of(self._inputs[sample, index])}
                return self._chunk(sample, {"tool_calls": [{"index": index, "custom": whole}]})
            case ToolCallEnd():
                return b""

    def end(self, answers: Sequence[Answer]) -> bytes:
        said = [self._end_of(sample, answer) for sample, answer in enumerate(answers)]
        if self._call.echo.get("usage"):
            said.append(event({**self._frame(), "choices": [], "usage": chat_usage(answers)}))
        return b"".join((*said, DONE))

    def failed(self, error: RefusedError) -> bytes:
        return event(openai_error(error)) + DONE

    def _end_of(self, sample: int, answer: Answer) -> bytes:
        odds = logprobs_body(answer.logprobs) if answer.logprobs else None
        choice = {"logprobs": odds, "finish_reason": finish_reason(answer), **token_ids(self._call, answer.ids)}
        return self._chunk(sample, {}, choice)

    def _chunk(
        self,
        sample: int,
        delta: Mapping[str, Any],
        ending: Mapping[str, Any] = NOT_ENDED,
        more: Mapping[str, Any] = NOTHING_MORE,
    ) -> bytes:
        return event({**self._frame(), **more, "choices": [{"index": sample, "delta": delta, **ending}]})

    def _frame(self) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._head.id}",
            "object": "chat.completion.chunk",
            "created": self._head.created,
            "model": self._call.model,
        }
