"""OpenAI Responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, Wishes
from loopwright.gateway.dialects.dialect import OF_NO_MATTER, Head, Recall, Stream, alternatives_of, nothing, tool
from loopwright.gateway.dialects.forms import RESPONSES_FORM, responses_form
from loopwright.gateway.dialects.openai_errors import openai_error
from loopwright.gateway.dialects.responses_input import read_input
from loopwright.gateway.dialects.responses_stream import ResponsesStream
from loopwright.gateway.dialects.responses_words import output_items, response_body
from loopwright.gateway.freeform import freeform_tool, not_granted
from loopwright.gateway.reading import chosen, count, flag, ignored, model_name, number, objects, strings, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Message, Tool

UNGRANTED = (
    "reasoning",
    "parallel_tool_calls",
    "truncation",
    "return_token_ids",
    "background",
    "max_tool_calls",
    "context_management",
)
ECHOED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id", "store")
KEPT_ELSEWHERE = ("conversation", "prompt")
"""Parts of a prompt that are stored at OpenAI. Without them the model would answer something else."""
LOGPROBS = "message.output_text.logprobs"
"""The part that an `include` can grant."""
GRANTED = ("input", "model", "stream", "stream_options", "instructions", "previous_response_id", "tools", "include")
WISHES = (*RESPONSES_FORM, *UNGRANTED, "top_logprobs")
MORE_ECHOED = ("temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user", "reasoning")


KNOWN = frozenset((*GRANTED, *WISHES, "max_output_tokens", "temperature", "top_p", *KEPT_ELSEWHERE, *OF_NO_MATTER))


class Responses:
    """A `Dialect`."""

    name = "openai"

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        _refuse_what_is_kept_elsewhere(body)
        instructions = text(body.get("instructions"), "instructions")
        preamble: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        previous = text(body.get("previous_response_id"), "previous_response_id") or None
        said = read_input(body.get("input"), recall, is_task=previous is None)
        if not said and previous is None:
            raise invalid("input", "there is nothing to answer", remedy="send a text or at least one item")
        include, alternatives = strings(body, "include"), alternatives_of(body, "top_logprobs")
        tools = () if body.get("tool_choice") == "none" else tuple(_tools(body))
        return Call(
            messages=(*preamble, *said),
            tools=tools,
            form=responses_form(body, tools),
            wishes=_wishes(body),
            model=model_name(body),
            stream=flag(body, "stream"),
            logprobs=alternatives > 0 or LOGPROBS in include,
            alternatives=alternatives,
            previous=None if previous is None else previous.removeprefix("resp_"),
            instructions=bool(preamble),
            echo=chosen(body, (*ECHOED, *MORE_ECHOED)),
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        answer = answers[0]
        return response_body(call, answer.id, answer.created, answer, output_items(answer, call.tools))

    def stream(self, call: Call, head: Head) -> Stream:
        return ResponsesStream(call, head)

    def error(self, error: RefusedError) -> Mapping[str, Any]:
        return openai_error(error)


def _refuse_what_is_kept_elsewhere(body: Mapping[str, Any]) -> None:
    for name in KEPT_ELSEWHERE:
        if body.get(name) is not None:
            raise invalid(
                name, "this server keeps none", remedy="send all of it as `input`, or go on with `previous_response_id`"
            )


def _wishes(body: Mapping[str, Any]) -> Wishes:
    return Wishes(
        max_tokens=count(body, "max_output_tokens"),
        temperature=number(body, "temperature", least=0, most=2),
        top_p=number(body, "top_p", least=0, most=1),
        others=chosen(body, WISHES) | _not_included(body) | ignored(body, KNOWN) | _tools_not_granted(body),
    )


def _not_included(body: Mapping[str, Any]) -> dict[str, Any]:
    left_out = [one for one in strings(body, "include") if one != LOGPROBS]
    return {"include": left_out} if left_out else {}


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    """The functions and the freeform tools. Tools that a server would run cannot be offered."""
    for where, item in objects(body.get("tools"), "tools"):
        if item.get("type") == "custom" and item.get("name"):
            yield freeform_tool(item, where)
        elif _is_function(item):
            name, about = text(item["name"], f"{where}.name"), text(item.get("description"), f"{where}.description")
            yield tool(name, about, item.get("parameters"))


def _is_function(item: Mapping[str, Any]) -> bool:
    return item.get("type", "function") == "function" and bool(item.get("name"))


def _tools_not_granted(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = objects(body.get("tools"), "tools")
    return not_granted((item, item, item.get("type") == "custom" or _is_function(item)) for _, item in tools)
