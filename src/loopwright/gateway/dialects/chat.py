"""OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, TokenLogprob, Wishes
from loopwright.gateway.dialects.chat_stream import ChatStream
from loopwright.gateway.dialects.chat_words import chat_usage, finish_reason, logprobs_body
from loopwright.gateway.dialects.dialect import Head, Recall, Stream, ToolNames, nothing, tool
from loopwright.gateway.dialects.forms import CHAT_FORM, chat_form
from loopwright.gateway.dialects.openai_errors import openai_error
from loopwright.gateway.parts import PartReader, content_text
from loopwright.gateway.reading import chosen, count, flag, json_text, model_name, number, objects, strings, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Message, Tool

MOST_SAMPLES = 128
UNGRANTED = (
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "parallel_tool_calls",
)


class ChatCompletions:
    """A `Dialect`."""

    name = "openai"

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        messages = tuple(_messages(body.get("messages")))
        if not messages:
            raise invalid("messages", "there are none", remedy="send at least one message")
        options = body.get("stream_options")
        tools = () if body.get("tool_choice") == "none" else tuple(_tools(body))
        return Call(
            messages=messages,
            tools=tools,
            form=chat_form(body, tools),
            wishes=_wishes(body),
            model=model_name(body),
            stream=flag(body, "stream"),
            samples=count(body, "n", most=MOST_SAMPLES) or 1,
            logprobs=flag(body, "logprobs"),
            echo={"usage": isinstance(options, dict) and bool(options.get("include_usage"))},
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        return {
            "id": f"chatcmpl-{answers[0].id}",
            "object": "chat.completion",
            "created": answers[0].created,
            "model": call.model,
            "choices": [_choice(index, answer) for index, answer in enumerate(answers)],
            "usage": chat_usage(answers),
        }

    def stream(self, call: Call, head: Head) -> Stream:
        return ChatStream(call, head)

    def error(self, error: RefusedError) -> Mapping[str, Any]:
        return openai_error(error)


def _wishes(body: Mapping[str, Any]) -> Wishes:
    return Wishes(
        max_tokens=count(body, "max_completion_tokens") or count(body, "max_tokens"),
        stop=strings(body, "stop"),
        temperature=number(body, "temperature", least=0, most=2),
        top_p=number(body, "top_p", least=0, most=1),
        top_k=count(body, "top_k", least=-1),
        seed=count(body, "seed", least=-(1 << 63), most=1 << 63),
        others=chosen(body, (*CHAT_FORM, *UNGRANTED)),
    )


def _messages(value: Any) -> Iterator[Message]:
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
            written = {"input": text(custom.get("input"), f"{place}.custom.input")}
            called = {"name": custom.get("name"), "arguments": json_text(written, f"{place}.custom")}
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


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    offered = [(f"{where}.function", item.get("function")) for where, item in objects(body.get("tools"), "tools")]
    offered += objects(body.get("functions"), "functions")
    for where, function in offered:
        if isinstance(function, dict) and function.get("name"):
            name = text(function["name"], f"{where}.name")
            yield tool(name, text(function.get("description"), f"{where}.description"), function.get("parameters"))


def _choice(index: int, answer: Answer) -> Mapping[str, Any]:
    parsed = answer.parsed
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(answer.logprobs),
        "finish_reason": finish_reason(answer),
    }


def _logprobs(tokens: Sequence[TokenLogprob]) -> Mapping[str, Any] | None:
    return logprobs_body(tokens) if tokens else None
