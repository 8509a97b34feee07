"""Converts canonical messages and tools to OpenAI's nested form and back. Chat templates use that form, with a call's
arguments as objects. Recorded conversations use it too."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.render.call_json import without_lone_surrogates
from loopwright.types import Message, Tool


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_shaped(message) for message in messages]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """The tools in the templates' form. None if there are none, because some templates announce an empty list."""
    return [{"type": "function", "function": dict(tool)} for tool in tools] or None


def value_of(arguments: str) -> Any:
    """The value of a call's arguments that every JSON reader accepts: a number that is too large becomes the largest
    float, and half a surrogate pair becomes a replacement mark. Text that is no JSON is returned as it is."""
    try:
        value = json.loads(arguments, parse_float=_float, parse_int=_int)
        if r"\ud" not in arguments and r"\uD" not in arguments:
            return value
        return json.loads(without_lone_surrogates(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return arguments


def _float(written: str) -> float:
    return min(max(float(written), -sys.float_info.max), sys.float_info.max)


def _int(written: str) -> int | float:
    return int(written) if len(written) < sys.float_info.max_10_exp else _float(written)


def _shaped(message: Message) -> dict[str, Any]:
    shaped = dict(message)
    shaped["content"] = message.get("content") or ""
    shaped.pop("omitted", None)
    if "reasoning" in message:
        shaped["reasoning_content"] = shaped.pop("reasoning") or ""
    if calls := message.get("tool_calls"):
        shaped["tool_calls"] = [_call(call) for call in calls]
    return shaped


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": value_of(call["arguments"])}
    return {"id": call.get("id", ""), "type": "function", "function": function}


def canonical_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Convert messages of recorded conversations. Canonical messages stay unchanged."""
    return tuple(_canonical(message) for message in messages)


def canonical_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    return tuple(tool.get("function", tool) for tool in tools)


def _canonical(message: Message) -> Message:
    known = ("role", "content", "name", "tool_call_id", "reasoning", "tool_calls", "ids")
    canonical = {key: message[key] for key in known if message.get(key) is not None}
    content = message.get("content") or ""
    parts = content if isinstance(content, list | tuple) else [{"text": content}]
    canonical["content"] = "".join(str(part.get("text", "")) for part in parts)
    if thought := message.get("reasoning_content"):
        canonical["reasoning"] = thought
    if calls := message.get("tool_calls"):
        canonical["tool_calls"] = tuple(_canonical_call(call) for call in calls)
    return canonical


def _canonical_call(call: Mapping[str, Any]) -> Mapping[str, str]:
    function = call.get("function", call)
    arguments = function["arguments"]
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call.get("id", ""), "name": function["name"], "arguments": spelled}
