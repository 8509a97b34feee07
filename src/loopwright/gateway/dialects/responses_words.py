"""What whole and streamed responses have in common: the items of an answer, and the body around them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loopwright.gateway.call import Answer, Call, TokenLogprob
from loopwright.gateway.dialects.anthropic_words import signature
from loopwright.gateway.dialects.chat_words import logprob_entries
from loopwright.gateway.freeform import freeform_names, input_of
from loopwright.types import FinishReason, Tool, ToolCall

Item = Mapping[str, Any]

MESSAGE, REASONING, CALL, FREEFORM_CALL = "msg", "rs", "fc", "ctc"
"""The prefixes of item ids. The id of the answer and the number of the item follow."""
LONGEST_PLACE = 9
"""The most digits of an item's number."""


def item_id(kind: str, answer: str, place: int) -> str:
    return f"{kind}_{answer}_{place}"


def named_by(id: str) -> tuple[str, str, int]:
    """The kind, the answer and the number in an item's id, if it is one of ours."""
    kind, answer, place = (*id.split("_"), "", "", "")[:3]
    return kind, answer, int(place) if place.isdecimal() and len(place) < LONGEST_PLACE else 0


def output_items(answer: Answer, tools: Sequence[Tool]) -> list[Item]:
    parsed, status = answer.parsed, _status(answer)
    items: list[Item] = []
    if parsed.reasoning:
        items.append(reasoning_item(answer.id, 0, parsed.reasoning))
    if parsed.content or not parsed.tool_calls:
        items.append(message_item(answer.id, 0, parsed.content, status, answer.logprobs))
    freeform = freeform_names(tools)
    return items + [called(call, answer.id, index, freeform) for index, call in enumerate(parsed.tool_calls)]


def called(call: ToolCall, answer: str, index: int, freeform: Collection[str]) -> Item:
    if call.name in freeform:
        return freeform_item(replace(call, arguments=input_of(call.arguments)), answer, index)
    return call_item(call, answer, index)


def reasoning_item(answer: str, place: int, thoughts: str) -> Item:
    return {
        "id": item_id(REASONING, answer, place),
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": thoughts}],
        "encrypted_content": signature(answer),
        "status": "completed",
    }


def message_item(answer: str, place: int, content: str, status: str, odds: Sequence[TokenLogprob] = ()) -> Item:
    id, parts = item_id(MESSAGE, answer, place), [text_part(content, odds)]
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": parts}


def text_part(content: str, odds: Sequence[TokenLogprob] = ()) -> Item:
    return {"type": "output_text", "text": content, "annotations": [], "logprobs": logprob_entries(odds)}


def call_item(call: ToolCall, answer: str, index: int, status: str = "completed") -> Item:
    return {
        "id": item_id(CALL, answer, index),
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }


def freeform_item(call: ToolCall, answer: str, index: int, status: str = "completed") -> Item:
    """The call of a freeform tool. Its arguments are the input, as plain text."""
    return {
        "id": item_id(FREEFORM_CALL, answer, index),
        "type": "custom_tool_call",
        "call_id": call.id,
        "name": call.name,
        "input": call.arguments,
        "status": status,
    }


def response_body(call: Call, id: str, created: int, answer: Answer | None, output: Sequence[Item]) -> dict[str, Any]:
    """The response with the settings of its request. Without an `answer` it is still in progress."""
    cut = answer is not None and _status(answer) == "incomplete"
    defaults: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
    }
    return {
        **defaults,
        **call.echo,
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created,
        "completed_at": created if answer else None,
        "status": _status(answer) if answer else "in_progress",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": call.model,
        "output": list(output),
        "usage": usage_body(answer) if answer else None,
    }


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish is FinishReason.LENGTH else "completed"


def usage_body(answer: Answer) -> Mapping[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
