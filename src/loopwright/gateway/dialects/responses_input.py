"""The items of a Responses request as messages.

What the model wrote in one turn arrives as several items (reasoning, a message, function calls). Neighbouring items of
this kind are joined to one assistant's message. A client may also send only the id of such an item. An unknown id is
refused, because the model must not get a conversation with a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.gateway.dialects.compaction import summary_message
from loopwright.gateway.dialects.dialect import Recall, ToolNames, nothing
from loopwright.gateway.dialects.responses_words import CALL, FREEFORM_CALL, MESSAGE, REASONING, named_by
from loopwright.gateway.freeform import arguments_of
from loopwright.gateway.parts import PartReader
from loopwright.gateway.reading import objects, text
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user"}
RESULTS = ("output", "outputs", "results", "result", "error", "tools")
"""Fields in which items hold the result of a tool."""
FRAME = ("id", "type", "call_id", "status", "name", "caller", "container_id", "server_label")
"""Fields of a call that are not part of its arguments."""


def read_input(value: Any, recall: Recall = nothing, *, is_task: bool = True) -> tuple[Message, ...]:
    """The messages of `input`: a text, or a list of items. `is_task`: the model has not answered before them."""
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    reader = _Reader(recall, is_task)
    for where, item in objects(value, "input"):
        reader.take(item, where)
    return reader.messages()


class _Reader:
    def __init__(self, recall: Recall, is_task: bool) -> None:
        self._recall = recall
        self._is_task = is_task
        self._recalled: set[tuple[str, str]] = set()
        self._messages: list[Message] = []
        self._turn: dict[str, Any] | None = None
        self._names = ToolNames()
        self._call_ids: dict[str, str] = {}

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
                arguments = arguments_of(text(item.get("input"), f"{where}.input"), where)
                self._call(item, where, text(item.get("name"), f"{where}.name"), arguments)
            case "function_call_output" | "custom_tool_call_output":
                parts = PartReader()
                self._result(item, where, parts.text(item.get("output"), f"{where}.output"), parts)
            case "compaction":
                self._add(summary_message(item, where, self._recall))
                self._is_task = False
            case "compaction_trigger":
                raise invalid(where, "an answer is no compaction", remedy="ask for one at `responses/compact`")
            case str() as kind:
                self._other(item, kind, where)
            case _:
                raise invalid(f"{where}.type", "expected a string", remedy="send the item as it was received")

    def messages(self) -> tuple[Message, ...]:
        self._end_turn()
        return tuple(self._messages)

    def _other(self, item: Mapping[str, Any], kind: str, where: str) -> None:
        """A call of a tool with its own item type, its output, or both in one. Anything else becomes a placeholder."""
        parts = PartReader()
        name = kind.removesuffix("_output").removesuffix("_call")
        results = [item[field] for field in RESULTS if item.get(field) is not None]
        if kind.endswith("_output"):
            self._result(item, where, "\n".join(parts.result(one, where) for one in results), parts)
        elif kind.endswith("_call") or kind == "program":
            self._call(item, where, text(item.get("name"), f"{where}.name") or name, _arguments(item, parts, where))
            if name == "image_generation" and results:
                self._result(item, where, "".join(parts.part({"type": "image"}, where)), parts)
            elif results:
                self._result(item, where, "\n".join(parts.result(one, where) for one in results), parts)
        else:
            self._note(parts.item(kind), parts)

    def _result(self, item: Mapping[str, Any], where: str, result: str, parts: PartReader) -> None:
        given = text(item.get("call_id"), f"{where}.call_id") or text(item.get("id"), f"{where}.id")
        call_id = self._call_ids.get(given, given)
        name = self._names.of(call_id)
        self._add(parts.message({"role": "tool", "content": result, "tool_call_id": call_id, "name": name}))

    def _note(self, placeholder: str, parts: PartReader) -> None:
        """Add a placeholder that belongs to no message. Templates need alternating roles, so it joins the user's
        message before it."""
        self._end_turn()
        before = self._messages.pop() if self._messages and self._messages[-1]["role"] == "user" else {}
        parts.omitted[:0] = before.get("omitted", ())
        said = f"{before['content']}\n{placeholder}" if before else placeholder
        self._messages.append(parts.message({"role": "user", "content": said}))

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = text(item.get("role"), f"{where}.role")
        if role == "assistant":
            self._assistant()["content"] += PartReader().text(item.get("content"), f"{where}.content", "")
        elif role in ROLES:
            parts = PartReader(is_task=self._is_task)
            self._add(
                parts.message({"role": ROLES[role], "content": parts.text(item.get("content"), f"{where}.content")})
            )
        else:
            raise invalid(
                f"{where}.role", f"there is no role {role!r:.40}", remedy="use system, developer, user or assistant"
            )

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        parts = PartReader()
        thoughts = parts.text(item.get("content"), f"{where}.content", "")
        thoughts = thoughts or parts.text(item.get("summary"), f"{where}.summary", "")
        self._think(thoughts)

    def _think(self, thoughts: str) -> None:
        if thoughts:
            turn = self._assistant()
            turn["reasoning"] = turn.get("reasoning", "") + thoughts

    def _reference(self, id: str, where: str) -> None:
        """The content of the item with this id. The texts of an answer are stored as one, so they are added once."""
        kind, answer, place = named_by(id)
        said = self._recall(answer)
        calls = said.get("tool_calls", ()) if said else ()
        is_call = kind in (CALL, FREEFORM_CALL)
        if said is None or not (is_call or kind in (MESSAGE, REASONING)) or (is_call and place >= len(calls)):
            raise refused(
                Code.UNKNOWN, f"{where}: this session has given no item {id:.80}", remedy="send the item", param=where
            )
        is_new = (kind, answer) not in self._recalled
        self._recalled.add((kind, answer))
        if is_call:
            called = {**calls[place], "call_id": calls[place]["id"]}
            self._call(called, where, called["name"], called["arguments"])
        elif kind == REASONING:
            self._think(said.get("reasoning", "") if is_new else "")
        else:
            self._assistant()["content"] += said["content"] if is_new else ""

    def _call(self, item: Mapping[str, Any], where: str, name: str, arguments: str) -> None:
        id = text(item.get("id"), f"{where}.id")
        call_id = text(item.get("call_id"), f"{where}.call_id") or id
        self._call_ids[id] = call_id
        self._names.add(call_id, name)
        turn = self._assistant()
        turn["tool_calls"] = (*turn.get("tool_calls", ()), {"id": call_id, "name": name, "arguments": arguments})

    def _assistant(self) -> dict[str, Any]:
        self._is_task = False
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


def _arguments(item: Mapping[str, Any], parts: PartReader, where: str) -> str:
    """The arguments of a call with its own item type: its arguments, its action, or all its other fields."""
    for field in ("arguments", "action", "operation"):
        if item.get(field) is not None:
            return parts.result(item[field], where)
    return parts.result({field: value for field, value in item.items() if field not in (*FRAME, *RESULTS)}, where)
