"""Anthropic Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, Wishes
from loopwright.gateway.dialects.anthropic_input import read_messages
from loopwright.gateway.dialects.anthropic_stream import AnthropicStream
from loopwright.gateway.dialects.anthropic_tools import read_tools, tools_not_granted
from loopwright.gateway.dialects.anthropic_words import (
    ShownThinking,
    anthropic_error,
    anthropic_usage,
    asked_thinking,
    shown,
    signature,
    stop_reason,
)
from loopwright.gateway.dialects.dialect import Head, Recall, Stream, answer_begun, arguments_object, nothing
from loopwright.gateway.dialects.forms import ANTHROPIC_FORM, anthropic_form
from loopwright.gateway.parts import content_text
from loopwright.gateway.reading import (
    chosen,
    count,
    flag,
    ignored,
    model_name,
    number,
    strings,
)
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.types import Message

UNGRANTED = ("thinking", "service_tier", "return_token_ids")
GRANTED = (
    *("messages", "system", "model", "stream", "tools", "thread"),
    *("max_tokens", "stop_sequences", "temperature", "top_p", "top_k"),
)
OF_NO_MATTER = ("metadata", "cache_control")
WISHES = (*ANTHROPIC_FORM, *UNGRANTED)
KNOWN = frozenset((*GRANTED, *WISHES, *OF_NO_MATTER))


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
        messages = (*preamble, *read_messages(body.get("messages")))
        if len(messages) == len(preamble):
            raise invalid("messages", "there are none", remedy="send at least one message")
        begun = ""
        if messages[-1]["role"] == "assistant":
            messages, begun = answer_begun(messages)
        choice = body.get("tool_choice")
        no_tools = isinstance(choice, dict) and choice.get("type") == "none"
        tools = () if no_tools else tuple(read_tools(body))
        return Call(
            messages=messages,
            tools=tools,
            form=anthropic_form(body, tools),
            wishes=_wishes(body),
            model=model_name(body),
            stream=flag(body, "stream"),
            begun=begun,
            echo={"thinking": asked_thinking(body.get("thinking"))},
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        answer = answers[0]
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": list(_blocks(answer, shown(call))),
            "stop_reason": stop_reason(answer),
            "stop_sequence": answer.stop,
            "usage": anthropic_usage(answer),
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
        others=chosen(body, WISHES) | ignored(body, KNOWN) | tools_not_granted(body),
    )


def _blocks(answer: Answer, thinking: ShownThinking) -> Iterator[Mapping[str, Any]]:
    parsed = answer.parsed
    if parsed.reasoning and thinking is not ShownThinking.NONE:
        thoughts = parsed.reasoning if thinking is ShownThinking.WHOLE else ""
        yield {"type": "thinking", "thinking": thoughts, "signature": signature(answer.id)}
    if parsed.content:
        yield {"type": "text", "text": parsed.content}
    for call in parsed.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}
