"""Canonical messages and tools in the shape that chat templates and their kin expect: OpenAI's nesting, and a call's
arguments as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.types import Message, Tool


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_shaped(message) for message in messages]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """None without any: some templates announce an empty list."""
    return [{"type": "function", "function": dict(tool)} for tool in tools] or None


def value_of(arguments: str) -> Any:
    """The value of a call's arguments; what is no JSON stands for itself."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _shaped(message: Message) -> dict[str, Any]:
    shaped = dict(message)
    shaped["content"] = message.get("content") or ""
    if "reasoning" in message:
        shaped["reasoning_content"] = shaped.pop("reasoning") or ""
    if calls := message.get("tool_calls"):
        shaped["tool_calls"] = [_call(call) for call in calls]
    return shaped


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": value_of(call["arguments"])}
    return {"id": call.get("id", ""), "type": "function", "function": function}
