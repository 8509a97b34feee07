"""A completion as an agent sees it: content, reasoning and tool calls, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.types.task import Message

Tool = Mapping[str, Any]
"""What a model may call: `name`, `description` and `parameters`, a JSON schema."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool. `arguments` is JSON text, as the model wrote it; `id` is empty if it wrote none."""

    name: str
    arguments: str
    id: str = ""

    @property
    def message_part(self) -> Mapping[str, str]:
        """The call as a part of an assistant's message."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole completion."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> Message:
        """The assistant's message; it has `reasoning` and `tool_calls` only if there are any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = tuple(call.message_part for call in self.tool_calls)
        return message


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins. `index` counts the calls of a completion from 0."""

    index: int
    name: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete, and its arguments are JSON."""

    index: int


Delta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd
"""A piece of a completion that is being sampled."""


def parsed_of(deltas: Iterable[Delta]) -> Parsed:
    """What the deltas of one completion add up to."""
    content, reasoning, calls = "", "", dict[int, ToolCall]()
    for delta in deltas:
        match delta:
            case ContentDelta():
                content += delta.text
            case ReasoningDelta():
                reasoning += delta.text
            case ToolCallStart():
                calls[delta.index] = ToolCall(delta.name, "", delta.id)
            case ToolCallArguments():
                call = calls[delta.index]
                calls[delta.index] = ToolCall(call.name, call.arguments + delta.text, call.id)
            case ToolCallEnd():
                pass
    return Parsed(content, reasoning, tuple(call for _, call in sorted(calls.items())))
