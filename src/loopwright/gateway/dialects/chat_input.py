"""The messages of a chat completion's request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopwright.gateway.dialects.dialect import ToolNames
from loopwright.gateway.freeform import arguments_of
from loopwright.gateway.parts import PartReader, content_text
from loopwright.gateway.reading import objects, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Message


def read_chat_messages(value: Any) -> Iterator[Message]:
    names, is_task = ToolNames(), True
    for where, message in objects(value, "messages"):
        role = text(message.get("role"), f"{where}.role")
        content = message.get("content")
        match role:
            case "system" | "developer":
                yield {"role": "system", "content": content_text(content, f"{where}.content")}
            case "user":
                parts = PartReader(is_task=is_task)
                yield parts.message({"role": "user", "content": parts.text(content, f"{where}.content")})
            case "assistant":
                is_task = False
                yield _assistant(message, where, names)
            case "tool" | "function":
                call_id = text(message.get("tool_call_id"), f"{where}.tool_call_id")
                name = text(message.get("name"), f"{where}.name") or names.of(call_id)
                parts = PartReader()
                result = parts.text(content, f"{where}.content")
                yield parts.message({"role": "tool", "content": result, "tool_call_id": call_id, "name": name})
            case _:
                raise invalid(
                    f"{where}.role",
                    f"there is no role {role!r:.40}",
                    remedy="use system, developer, user, assistant or tool",
                )


def _assistant(message: Mapping[str, Any], where: str, names: ToolNames) -> Message:
    parts = PartReader()
    content = parts.text(message.get("content"), f"{where}.content", "") or text(
        message.get("refusal"), f"{where}.refusal"
    )
    if isinstance(message.get("audio"), dict):
        content += "".join(parts.part({"type": "audio"}, f"{where}.audio"))
    said: dict[str, Any] = {"role": "assistant", "content": content}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        said["reasoning"] = reasoning
    if calls := tuple(_tool_calls(message, where, names)):
        said["tool_calls"] = calls
    return parts.message(said)


def _tool_calls(message: Mapping[str, Any], where: str, names: ToolNames) -> Iterator[Mapping[str, str]]:
    for place, call in objects(message.get("tool_calls"), f"{where}.tool_calls"):
        called = call.get("function")
        if isinstance(custom := call.get("custom"), dict):
            written = text(custom.get("input"), f"{place}.custom.input")
            called = {"name": custom.get("name"), "arguments": arguments_of(written, f"{place}.custom")}
        if not isinstance(called, dict):
            raise invalid(f"{place}.function", "it is missing", remedy="send the call as it was received")
        name = text(called.get("name"), f"{place}.function.name")
        call_id = text(call.get("id"), f"{place}.id")
        names.add(call_id, name)
        yield {"id": call_id, "name": name, "arguments": text(called.get("arguments"), f"{place}.function.arguments")}
    old_style = message.get("function_call")
    if isinstance(old_style, dict):
        place = f"{where}.function_call"
        name, arguments = text(old_style.get("name"), place), text(old_style.get("arguments"), place)
        yield {"id": "", "name": name, "arguments": arguments}
