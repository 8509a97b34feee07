"""Writes a response while it is sampled: every item is added, filled and done, and the whole response comes last.

Clients build their history from these events, not from the last one. With the last one alone, some would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, TokenLogprob, tool_call_id
from loopwright.gateway.dialects.chat_words import logprob_entries
from loopwright.gateway.dialects.dialect import Head, event
from loopwright.gateway.dialects.openai_errors import openai_error
from loopwright.gateway.dialects.responses_words import (
    CALL,
    FREEFORM_CALL,
    MESSAGE,
    REASONING,
    Item,
    call_item,
    freeform_item,
    item_id,
    message_item,
    reasoning_item,
    response_body,
    text_part,
)
from loopwright.gateway.freeform import freeform_names, input_of
from loopwright.types import (
    ContentDelta,
    Delta,
    FinishReason,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

IN_PROGRESS = "in_progress"


class ResponsesStream:
    """A `Stream`. There is one sample."""

    def __init__(self, call: Call, head: Head) -> None:
        self._call = call
        self._head = head
        self._freeform = freeform_names(call.tools)
        self._events = 0
        self._done: list[Item] = []
        self._open: _OpenItem | None = None

    def start(self) -> bytes:
        body = response_body(self._call, self._head.id, self._head.created, None, [])
        return self._event("response.created", response=body) + self._event("response.in_progress", response=body)

    def delta(self, sample: int, delta: Delta) -> bytes:
        match delta:
            case ContentDelta(text):
                return self._in(_Message) + self._more(text)
            case ReasoningDelta(text):
                return self._in(_Reasoning) + self._more(text)
            case ToolCallStart(index, name, call_id):
                known = call_id or tool_call_id(self._head.id, index)
                kind = _FreeformCall if name in self._freeform else _Call
                return self._close() + self._begin(kind(self._head.id, ToolCall(name, "", known), index))
            case ToolCallArguments(_, text) if isinstance(self._open, _FreeformCall):
                self._open.arguments += text
                return b""
            case ToolCallArguments(_, text):
                return self._more(text)
            case ToolCallEnd() if isinstance(self._open, _FreeformCall):
                return self._more(input_of(self._open.arguments)) + self._close()
            case ToolCallEnd():
                return self._close()

    def end(self, answers: Sequence[Answer]) -> bytes:
        answer = answers[0]
        cut = answer.finish is FinishReason.LENGTH
        said = self._close("incomplete" if cut else "completed", answer.logprobs)
        if not self._done:
            said += self._in(_Message) + self._close("incomplete" if cut else "completed", answer.logprobs)
        self._tell_logprobs(answer.logprobs)
        body = response_body(self._call, self._head.id, self._head.created, answer, self._done)
        return said + self._event("response.incomplete" if cut else "response.completed", response=body)

    def failed(self, error: RefusedError) -> bytes:
        body = response_body(self._call, self._head.id, self._head.created, None, self._done)
        said = openai_error(error)["error"]
        body |= {"status": "failed", "error": {"code": "server_error", "message": said["message"]}}
        return self._event("response.failed", response=body)

    def _in(self, kind: type[_Message] | type[_Reasoning]) -> bytes:
        """Open an item of this kind, unless one is open."""
        if type(self._open) is kind:
            return b""
        closed = self._close()
        return closed + self._begin(kind(self._head.id, len(self._done)))

    def _begin(self, item: _OpenItem) -> bytes:
        self._open = item
        place = len(self._done)
        added = self._event("response.output_item.added", output_index=place, item=item.whole(IN_PROGRESS))
        return added + self._parts(item.opening())

    def _more(self, text: str) -> bytes:
        if self._open is None:
            return b""
        self._open.text += text
        return self._parts([(f"response.{self._open.growth}.delta", {"delta": text, **self._open.extra})])

    def _tell_logprobs(self, odds: Sequence[TokenLogprob]) -> None:
        """The whole response has the logprobs of all tokens in its last message, also if calls came after it."""
        for place in reversed(range(len(self._done)) if odds else ()):
            if self._done[place]["type"] == "message":
                part = {**self._done[place]["content"][0], "logprobs": logprob_entries(odds)}
                self._done[place] = {**self._done[place], "content": [part]}
                return

    def _close(self, status: str = "completed", odds: Sequence[TokenLogprob] = ()) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        item.odds = odds
        said = self._parts(item.closing(status), item)
        whole = item.whole(status)
        said += self._event("response.output_item.done", output_index=len(self._done), item=whole)
        self._done.append(whole)
        return said

    def _parts(self, events: Sequence[tuple[str, Mapping[str, Any]]], item: _OpenItem | None = None) -> bytes:
        item = item or self._open
        place = {"item_id": item.id if item else "", "output_index": len(self._done)}
        return b"".join(self._event(kind, **place, **data) for kind, data in events)

    def _event(self, kind: str, **data: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        return event({"type": kind, "sequence_number": number, **data}, kind)


class _Message:
    """An item with a message."""

    growth = "output_text"
    extra: Mapping[str, Any] = {"content_index": 0, "logprobs": []}

    def __init__(self, answer: str, place: int) -> None:
        self.text = ""
        self.odds: Sequence[TokenLogprob] = ()
        self.id = item_id(MESSAGE, answer, place)
        self._answer, self._place = answer, place

    def whole(self, status: str) -> Item:
        item = message_item(self._answer, self._place, self.text, status, self.odds)
        return {**item, "content": []} if status == IN_PROGRESS else item

    def opening(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [("response.content_part.added", {"content_index": 0, "part": text_part("")})]

    def closing(self, status: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [
            (
                "response.output_text.done",
                {"content_index": 0, "text": self.text, "logprobs": logprob_entries(self.odds)},
            ),
            ("response.content_part.done", {"content_index": 0, "part": text_part(self.text, self.odds)}),
        ]


class _Reasoning:
    """An item with thoughts."""

    growth = "reasoning_text"
    extra: Mapping[str, Any] = {"content_index": 0}

    def __init__(self, answer: str, place: int) -> None:
        self.text = ""
        self.odds: Sequence[TokenLogprob] = ()
        self.id = item_id(REASONING, answer, place)
        self._answer, self._place = answer, place

    def whole(self, status: str) -> Item:
        item = reasoning_item(self._answer, self._place, self.text)
        return {**item, "content": [], "status": status} if status == IN_PROGRESS else item

    def opening(self) -> list[tuple[str, Mapping[str, Any]]]:
        return []

    def closing(self, status: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [("response.reasoning_text.done", {"content_index": 0, "text": self.text})]


class _Call:
    """An item that calls a function."""

    growth = "function_call_arguments"
    extra: Mapping[str, Any] = {}

    def __init__(self, answer: str, call: ToolCall, index: int) -> None:
        self.text = ""
        self.odds: Sequence[TokenLogprob] = ()
        self.id = item_id(CALL, answer, index)
        self._answer = answer
        self._call = call
        self._index = index

    def whole(self, status: str) -> Item:
        call = ToolCall(self._call.name, self.text, self._call.id)
        return call_item(call, self._answer, self._index, status)

    def opening(self) -> list[tuple[str, Mapping[str, Any]]]:
        return []

    def closing(self, status: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [("response.function_call_arguments.done", {"name": self._call.name, "arguments": self.text})]


class _FreeformCall(_Call):
    """An item that calls a freeform tool. Only its whole arguments tell the input."""

    growth = "custom_tool_call_input"

    def __init__(self, answer: str, call: ToolCall, index: int) -> None:
        super().__init__(answer, call, index)
        self.id = item_id(FREEFORM_CALL, answer, index)
        self.arguments = ""

    def whole(self, status: str) -> Item:
        call = ToolCall(self._call.name, self.text, self._call.id)
        return freeform_item(call, self._answer, self._index, status)

    def closing(self, status: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [("response.custom_tool_call_input.done", {"input": self.text})]


_OpenItem = _Message | _Reasoning | _Call
