"""The items of a Responses request as messages.

What the model said in one turn arrives as several items (reasoning, a message, function calls). Neighbours of that kind
are put together again: they are one assistant's message. A client may also send the id of such an item alone; what is
not remembered under it is refused, because the model must not be shown a conversation with a hole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from loopwright.gateway.dialects.dialect import Recall, ToolNames, nothing
from loopwright.gateway.dialects.responses_words import CALL, MESSAGE, REASONING, named_by
from loopwright.gateway.reading import content_text, objects, text
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user"}


def read_input(value: Any, recall: Recall = nothing) -> tuple[Message, ...]:
    """The messages of `input`: a text, or a list of items. Items of an unknown type are skipped."""
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    reader = _Reader(recall)
    for where, item in objects(value, "input"):
        reader.take(item, where)
    return reader.messages()


class _Reader:
    def __init__(self, recall: Recall) -> None:
        self._recall = recall
        self._recalled: set[tuple[str, str]] = set()
        self._messages: list[Message] = []
        self._turn: dict[str, Any] | None = None
        self._names = ToolNames()

    def take(self, item: Mapping[str, Any], where: str) -> None:
        match item.get("type") or "message":
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "item_reference":
                self._reference(text(item.get("id"), f"{where}.id"), where)
            case "function_call":
                arguments = text(item.get("arguments"), f"{where}.arguments")
                self._call(item, where, text(item.get("name"), f"{where}.name"), arguments)
            case "custom_tool_call":
                written = {"input": text(item.get("input"), f"{where}.input")}
                self._call(item, where, text(item.get("name"), f"{where}.name"), orjson.dumps(written).decode())
            case "function_call_output" | "custom_tool_call_output":
                call_id = text(item.get("call_id"), f"{where}.call_id")
                result = content_text(item.get("output"), f"{where}.output")
                self._add({"role": "tool", "content": result, "tool_call_id": call_id, "name": self._names.of(call_id)})

    def messages(self) -> tuple[Message, ...]:
        self._end_turn()
        return tuple(self._messages)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = text(item.get("role"), f"{where}.role")
        if role == "assistant":
            self._assistant()["content"] += content_text(item.get("content"), f"{where}.content", "")
        elif role in ROLES:
            self._add({"role": ROLES[role], "content": content_text(item.get("content"), f"{where}.content")})
        else:
            raise invalid(
                f"{where}.role", f"there is no role {role!r:.40}", remedy="use system, developer, user or assistant"
            )

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        thoughts = content_text(item.get("content"), f"{where}.content", "")
        thoughts = thoughts or content_text(item.get("summary"), f"{where}.summary", "")
        self._think(thoughts)

    def _think(self, thoughts: str) -> None:
        if thoughts:
            turn = self._assistant()
            turn["reasoning"] = turn.get("reasoning", "") + thoughts

    def _reference(self, id: str, where: str) -> None:
        """What the item of that id said. An answer's texts are remembered as one, so they count once."""
        kind, answer, place = named_by(id)
        said = self._recall(answer)
        calls = said.get("tool_calls", ()) if said else ()
        if said is None or kind not in (MESSAGE, REASONING, CALL) or (kind == CALL and place >= len(calls)):
            raise refused(
                Code.UNKNOWN, f"{where}: this session has given no item {id:.80}", remedy="send the item", param=where
            )
        is_new = (kind, answer) not in self._recalled
        self._recalled.add((kind, answer))
        if kind == CALL:
            called = {**calls[place], "call_id": calls[place]["id"]}
            self._call(called, where, called["name"], called["arguments"])
        elif kind == REASONING:
            self._think(said.get("reasoning", "") if is_new else "")
        else:
            self._assistant()["content"] += said["content"] if is_new else ""

    def _call(self, item: Mapping[str, Any], where: str, name: str, arguments: str) -> None:
        call_id = text(item.get("call_id"), f"{where}.call_id")
        self._names.add(call_id, name)
        turn = self._assistant()
        turn["tool_calls"] = (*turn.get("tool_calls", ()), {"id": call_id, "name": name, "arguments": arguments})

    def _assistant(self) -> dict[str, Any]:
        if self._turn is None:
            self._turn = {"role": "assistant", "content": ""}
        return self._turn

    def _add(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn)
        self._turn = None
