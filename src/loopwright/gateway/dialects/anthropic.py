"""Anthropic Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, Wishes
from loopwright.gateway.dialects.anthropic_stream import AnthropicStream
from loopwright.gateway.dialects.anthropic_tools import read_tools
from loopwright.gateway.dialects.anthropic_words import anthropic_error, signature, stop_reason, usage
from loopwright.gateway.dialects.dialect import Head, Recall, Stream, ToolNames, nothing
from loopwright.gateway.reading import (
    chosen,
    content_text,
    count,
    flag,
    json_text,
    model_name,
    number,
    objects,
    part_text,
    strings,
    text,
)
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.render.canonical import value_of
from loopwright.types import Message

UNGRANTED = ("tool_choice", "thinking", "output_config", "service_tier")


class AnthropicMessages:
    """A `Dialect`."""

    name = "anthropic"

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        if body.get("thread") is not None:
            raise refused(
                Code.THREADS,
                "threads: this server keeps none",
                remedy="send the whole conversation, without `thread`",
                param="thread",
            )
        system = content_text(body.get("system"), "system")
        preamble: list[Message] = [{"role": "system", "content": system}] if system else []
        messages = (*preamble, *_messages(body.get("messages")))
        if len(messages) == len(preamble):
            raise invalid("messages", "there are none", remedy="send at least one message")
        choice = body.get("tool_choice")
        no_tools = isinstance(choice, dict) and choice.get("type") == "none"
        return Call(
            messages=messages,
            tools=() if no_tools else tuple(read_tools(body)),
            wishes=_wishes(body),
            model=model_name(body),
            stream=flag(body, "stream"),
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        answer = answers[0]
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": list(_blocks(answer)),
            "stop_reason": stop_reason(answer),
            "stop_sequence": answer.stop,
            "usage": usage(answer),
        }

    def stream(self, call: Call, head: Head) -> Stream:
        return AnthropicStream(call, head)

    def error(self, error: RefusedError) -> Mapping[str, Any]:
        return anthropic_error(error)


def _wishes(body: Mapping[str, Any]) -> Wishes:
    return Wishes(
        max_tokens=count(body, "max_tokens"),
        stop=strings(body, "stop_sequences"),
        temperature=number(body, "temperature", least=0, most=1),
        top_p=number(body, "top_p", least=0, most=1),
        top_k=count(body, "top_k", least=-1),
        others=chosen(body, UNGRANTED),
    )


def _messages(value: Any) -> Iterator[Message]:
    names = ToolNames()
    for where, message in objects(value, "messages"):
        role, content = text(message.get("role"), f"{where}.role"), message.get("content")
        place = f"{where}.content"
        match role:
            case "system":
                yield {"role": "system", "content": content_text(content, place)}
            case "user" if isinstance(content, list):
                yield from _user_blocks(content, place, names)
            case "user":
                yield {"role": "user", "content": content_text(content, place)}
            case "assistant" if isinstance(content, list):
                yield _assistant(content, place, names)
            case "assistant":
                yield {"role": "assistant", "content": content_text(content, place)}
            case _:
                raise invalid(f"{where}.role", f"there is no role {role!r:.40}", remedy="use user, assistant or system")


def _user_blocks(content: list[Any], where: str, names: ToolNames) -> Iterator[Message]:
    """The results of tools as messages of their own; what the user says around them, in its place."""
    said: list[str] = []
    results = 0
    for place, block in objects([_as_block(part) for part in content], where):
        if block.get("type") != "tool_result":
            said += part_text(block, place)
            continue
        if said:
            yield {"role": "user", "content": "\n".join(said)}
            said = []
        results += 1
        call_id = text(block.get("tool_use_id"), f"{place}.tool_use_id")
        result = content_text(block.get("content"), f"{place}.content")
        yield {"role": "tool", "content": result, "tool_call_id": call_id, "name": names.of(call_id)}
    if said or not results:
        yield {"role": "user", "content": "\n".join(said)}


def _assistant(content: list[Any], where: str, names: ToolNames) -> Message:
    said, thoughts, calls = "", "", list[Mapping[str, str]]()
    for place, block in objects([_as_block(part) for part in content], where):
        match block.get("type", "text"):
            case "text":
                said += text(block.get("text"), f"{place}.text")
            case "thinking":
                thoughts += text(block.get("thinking"), f"{place}.thinking")
            case "tool_use":
                call_id, name = text(block.get("id"), f"{place}.id"), text(block.get("name"), f"{place}.name")
                names.add(call_id, name)
                arguments = json_text(block.get("input") or {}, f"{place}.input")
                calls.append({"id": call_id, "name": name, "arguments": arguments})
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if thoughts:
        message["reasoning"] = thoughts
    if calls:
        message["tool_calls"] = tuple(calls)
    return message


def _as_block(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _blocks(answer: Answer) -> Iterator[Mapping[str, Any]]:
    parsed = answer.parsed
    if parsed.reasoning:
        yield {"type": "thinking", "thinking": parsed.reasoning, "signature": signature(answer.id)}
    if parsed.content:
        yield {"type": "text", "text": parsed.content}
    for call in parsed.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call.arguments)}


def _arguments(written: str) -> Any:
    if not written.strip():
        return {}
    try:
        return orjson.loads(written)
    except orjson.JSONDecodeError:
        value = value_of(written)
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return {"arguments": written}
    return value if isinstance(value, dict) else {"arguments": written}
