"""The messages of a request to Anthropic's API, and their blocks.

In this API, the results of server tools are inside an assistant's message. For the model they are results like any
other: separate messages between two messages of the assistant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopwright.gateway.dialects.dialect import ToolNames
from loopwright.gateway.parts import PartReader, content_text
from loopwright.gateway.reading import json_text, objects, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Message


def read_messages(value: Any) -> Iterator[Message]:
    names, is_task = ToolNames(), True
    for where, message in objects(value, "messages"):
        role, content = text(message.get("role"), f"{where}.role"), message.get("content")
        place = f"{where}.content"
        match role:
            case "system":
                yield {"role": "system", "content": content_text(content, place)}
            case "user" if isinstance(content, list):
                yield from _user_blocks(content, place, names, is_task=is_task)
            case "user":
                yield {"role": "user", "content": content_text(content, place)}
            case "assistant":
                is_task = False
                blocks = content if isinstance(content, list) else [content_text(content, place)]
                yield from _assistant(blocks, place, names)
            case _:
                raise invalid(f"{where}.role", f"there is no role {role!r:.40}", remedy="use user, assistant or system")


def _user_blocks(content: list[Any], where: str, names: ToolNames, *, is_task: bool) -> Iterator[Message]:
    """The results of tools as separate messages, and the user's texts around them, in order."""
    said, parts = list[str](), PartReader(is_task=is_task)
    results = 0
    for place, block in objects([_as_block(part) for part in content], where):
        if block.get("type") != "tool_result":
            said += parts.part(block, place)
            continue
        if said:
            yield parts.message({"role": "user", "content": "\n".join(said)})
            said, parts = [], PartReader(is_task=is_task)
        results += 1
        reader = PartReader()
        yield _result(block, place, names, reader.text(block.get("content"), f"{place}.content"), reader)
    if said or not results:
        yield parts.message({"role": "user", "content": "\n".join(said)})


def _result(block: Mapping[str, Any], where: str, names: ToolNames, result: str, reader: PartReader) -> Message:
    call_id = text(block.get("tool_use_id"), f"{where}.tool_use_id")
    return reader.message({"role": "tool", "content": result, "tool_call_id": call_id, "name": names.of(call_id)})


def _assistant(content: list[Any], where: str, names: ToolNames) -> Iterator[Message]:
    turn, yielded = _Turn(), 0
    for place, block in objects([_as_block(part) for part in content], where):
        kind = block.get("type", "text")
        if isinstance(kind, str) and kind.endswith("_tool_result"):
            if turn.blocks:
                yield turn.message()
            turn, yielded, reader = _Turn(), yielded + 1, PartReader()
            yield _result(block, place, names, reader.result(block.get("content"), f"{place}.content"), reader)
        else:
            turn.take(block, kind, place, names)
    if turn.blocks or not yielded:
        yield turn.message()


class _Turn:
    """One message of the assistant."""

    def __init__(self) -> None:
        self.blocks = 0
        self._said, self._thoughts = "", ""
        self._calls: list[Mapping[str, str]] = []
        self._parts = PartReader()

    def take(self, block: Mapping[str, Any], kind: Any, where: str, names: ToolNames) -> None:
        self.blocks += 1
        match kind:
            case "thinking":
                self._thoughts += text(block.get("thinking"), f"{where}.thinking")
            case "redacted_thinking":
                self._parts.omitted.append("thinking")
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                self._calls.append(_call(block, where, names))
            case _:
                self._said += "".join(self._parts.part(block, where))

    def message(self) -> Message:
        message: dict[str, Any] = {"role": "assistant", "content": self._said}
        if self._thoughts:
            message["reasoning"] = self._thoughts
        if self._calls:
            message["tool_calls"] = tuple(self._calls)
        return self._parts.message(message)


def _call(block: Mapping[str, Any], where: str, names: ToolNames) -> Mapping[str, str]:
    call_id, name = text(block.get("id"), f"{where}.id"), text(block.get("name"), f"{where}.name")
    names.add(call_id, name)
    return {"id": call_id, "name": name, "arguments": json_text(block.get("input") or {}, f"{where}.input")}


def _as_block(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part
