"""Writes a message while it is sampled: one content block after the other, each opened, filled and closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, tool_call_id
from loopwright.gateway.dialects.anthropic_words import (
    ShownThinking,
    anthropic_error,
    anthropic_usage,
    input_usage,
    shown,
    signature,
    stop_reason,
)
from loopwright.gateway.dialects.dialect import Head, event
from loopwright.types import ContentDelta, Delta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart


class AnthropicStream:
    """A `Stream`. There is one sample."""

    def __init__(self, call: Call, head: Head) -> None:
        self._call = call
        self._head = head
        self._thinking = shown(call)
        self._blocks = 0
        self._open: str | None = None

    def start(self) -> bytes:
        message: dict[str, Any] = {
            "id": f"msg_{self._head.id}",
            "type": "message",
            "role": "assistant",
            "model": self._call.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": input_usage(self._head.prompt_tokens, self._head.cached_tokens) | {"output_tokens": 0},
        }
        return _event("message_start", {"message": message})

    def delta(self, sample: int, delta: Delta) -> bytes:
        match delta:
            case ContentDelta(text):
                return self._in("text", {"text": ""}) + self._add({"type": "text_delta", "text": text})
            case ReasoningDelta() if self._thinking is ShownThinking.NONE:
                return b""
            case ReasoningDelta(text):
                opened = self._in("thinking", {"thinking": "", "signature": ""})
                if self._thinking is ShownThinking.SIGNATURE:
                    return opened
                return opened + self._add({"type": "thinking_delta", "thinking": text})
            case ToolCallStart(index, name, call_id):
                known = call_id or tool_call_id(self._head.id, index)
                return self._close() + self._in("tool_use", {"id": known, "name": name, "input": {}})
            case ToolCallArguments(_, text):
                return self._add({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd():
                return self._close()

    def end(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        closing = {"stop_reason": stop_reason(answer), "stop_sequence": answer.stop}
        return b"".join(
            (
                self._close(),
                _event("message_delta", {"delta": closing, "usage": anthropic_usage(answer)}),
                _event("message_stop", {}),
            )
        )

    def failed(self, error: RefusedError) -> bytes:
        return event(anthropic_error(error), "error")

    def _in(self, kind: str, block: Mapping[str, Any]) -> bytes:
        """Open a block of this kind, unless one is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        content = {"type": kind, **block}
        return closed + _event("content_block_start", {"index": self._blocks, "content_block": content})

    def _add(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._add({"type": "signature_delta", "signature": signature(self._head.id)})
        closed = _event("content_block_stop", {"index": self._blocks})
        self._open = None
        self._blocks += 1
        return signed + closed


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    return event({"type": kind, **data}, kind)
