"""The input items of a recorded response: the conversation that it answered, as items of the Responses API.

They say the same as the items that the client sent, and are not always written in the same way: the record keeps what
the model read. Instructions are no items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loopwright.gateway.dialects.responses_words import Item
from loopwright.gateway.freeform import freeform_names, input_of
from loopwright.gateway.refusals import invalid
from loopwright.types import Message, Tool

MOST_ITEMS, USUAL_ITEMS = 100, 20
ORDERS = ("desc", "asc")


def input_items(answer: str, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Item]:
    """The items in the order in which the model read them. `answer` is the id of what it answered."""
    freeform, items = freeform_names(tools), list[dict[str, Any]]()
    freeform_calls = set[str]()
    for message in messages:
        for item in _items(message, freeform, freeform_calls):
            items.append({"id": f"in_{answer}_{len(items)}", "status": "completed", **item})
    return list(items)


def item_page(items: Sequence[Item], limit: str | None, order: str | None, after: str | None) -> dict[str, Any]:
    """One page of the items, as the API lists them: the latest first, unless the client asks otherwise."""
    if order not in (None, *ORDERS):
        raise invalid("order", f"there is no order {order!r:.40}", remedy="use asc or desc")
    if limit is not None and not (limit.isdecimal() and len(limit) < 9 and 0 < int(limit) <= MOST_ITEMS):
        raise invalid("limit", f"expected a number from 1 to {MOST_ITEMS}", remedy="correct or omit it")
    listed = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        place = next((n for n, item in enumerate(listed) if item["id"] == after), None)
        if place is None:
            raise invalid("after", f"there is no item {after:.80}", remedy="use an id from this list")
        listed = listed[place + 1 :]
    page = listed[: int(limit) if limit else USUAL_ITEMS]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, "has_more": len(listed) > len(page), **ends}


def _items(message: Message, freeform: frozenset[str], freeform_calls: set[str]) -> Iterator[dict[str, Any]]:
    match message["role"]:
        case "assistant":
            yield from _said(message, freeform, freeform_calls)
        case "tool":
            call_id = message["tool_call_id"]
            kind = "custom_tool_call_output" if call_id in freeform_calls else "function_call_output"
            yield {"type": kind, "call_id": call_id, "output": message["content"]}
        case role:
            part = {"type": "input_text", "text": message["content"]}
            yield {"type": "message", "role": role if role == "system" else "user", "content": [part]}


def _said(message: Message, freeform: frozenset[str], freeform_calls: set[str]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls", ())
    if thoughts := message.get("reasoning"):
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thoughts}]}
    if message["content"] or not calls:
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        yield {"type": "message", "role": "assistant", "content": [part]}
    for call in calls:
        named = {"call_id": call["id"], "name": call["name"]}
        if call["name"] in freeform:
            freeform_calls.add(call["id"])
            yield {"type": "custom_tool_call", **named, "input": input_of(call["arguments"])}
        else:
            yield {"type": "function_call", **named, "arguments": call["arguments"]}
