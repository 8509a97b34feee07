"""OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, TokenLogprob, Wishes
from loopwright.gateway.dialects.chat_input import read_chat_messages
from loopwright.gateway.dialects.chat_stream import ChatStream
from loopwright.gateway.dialects.chat_words import (
    asked_tool,
    chat_usage,
    finish_reason,
    logprobs_body,
    prompt_token_ids,
    token_ids,
)
from loopwright.gateway.dialects.dialect import (
    OF_NO_MATTER,
    Head,
    Recall,
    Stream,
    alternatives_of,
    answer_begun,
    answers_asked,
    nothing,
    tool,
)
from loopwright.gateway.dialects.forms import CHAT_FORM, chat_form, choice_field, refuse_guided
from loopwright.gateway.dialects.openai_errors import openai_error
from loopwright.gateway.freeform import freeform_names, freeform_tool, not_granted
from loopwright.gateway.reading import chosen, count, flag, ignored, model_name, number, objects, strings, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Tool

MOST_SAMPLES = 128
OF_VLLM = (
    "min_p",
    "min_tokens",
    "repetition_penalty",
    "ignore_eos",
    "stop_token_ids",
    "bad_words",
    "prompt_logprobs",
    "chat_template",
    "chat_template_kwargs",
    "documents",
)
"""Settings of vLLM's API that clients send to any server that speaks like OpenAI."""
UNGRANTED = (
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "parallel_tool_calls",
    "verbosity",
    "prediction",
    "modalities",
    "web_search_options",
    *OF_VLLM,
)


GRANTED = (
    *("messages", "model", "stream", "stream_options", "n", "tools", "functions", "logprobs", "return_token_ids"),
    *("max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "top_k", "seed"),
    *("continue_final_message", "add_generation_prompt"),
)
WISHES = (*CHAT_FORM, *UNGRANTED, "top_logprobs")
KNOWN = frozenset((*GRANTED, *WISHES, *OF_NO_MATTER))


class ChatCompletions:
    """A `Dialect`."""

    name = "openai"

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        refuse_guided(body)
        messages = tuple(read_chat_messages(body.get("messages")))
        if not messages:
            raise invalid("messages", "there are none", remedy="send at least one message")
        begun = ""
        if _begins_answer(body):
            messages, begun = answer_begun(messages)
        options = body.get("stream_options")
        tools = () if body.get(choice_field(body)) == "none" else tuple(_tools(body))
        return Call(
            messages=messages,
            tools=tools,
            form=chat_form(body, tools),
            wishes=_wishes(body),
            model=model_name(body),
            stream=flag(body, "stream"),
            samples=answers_asked(body, "n", MOST_SAMPLES),
            begun=begun,
            logprobs=flag(body, "logprobs"),
            alternatives=_alternatives(body),
            token_ids=flag(body, "return_token_ids"),
            echo={"usage": isinstance(options, dict) and bool(options.get("include_usage"))},
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        body = {
            "id": f"chatcmpl-{answers[0].id}",
            "object": "chat.completion",
            "created": answers[0].created,
            "model": call.model,
            "choices": [_choice(call, index, answer) for index, answer in enumerate(answers)],
            "usage": chat_usage(answers),
        }
        return body | prompt_token_ids(call, answers[0].prompt_ids)

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
        others=chosen(body, WISHES) | ignored(body, KNOWN) | _tools_not_granted(body),
    )


def _begins_answer(body: Mapping[str, Any]) -> bool:
    """Whether the last message is the beginning of the answer: as vLLM's API says it, or as Mistral's does."""
    goes_on, opens = flag(body, "continue_final_message"), body.get("add_generation_prompt") is not False
    if goes_on and opens:
        raise invalid(
            "continue_final_message",
            "add_generation_prompt would begin another message",
            remedy="send `add_generation_prompt: false` with it",
        )
    if not (goes_on or opens):
        raise invalid(
            "add_generation_prompt",
            "without it nobody knows who speaks next",
            remedy="send `continue_final_message: true` with it, or omit it",
        )
    *_, (_, last) = objects(body.get("messages"), "messages")
    return goes_on or last.get("prefix") is True


def _alternatives(body: Mapping[str, Any]) -> int:
    asked = alternatives_of(body, "top_logprobs")
    if asked and not flag(body, "logprobs"):
        raise invalid("top_logprobs", "there are no logprobs", remedy="send `logprobs: true` with it")
    return asked


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    offered: list[tuple[str, Any]] = []
    for where, item in objects(body.get("tools"), "tools"):
        if isinstance(custom := item.get("custom"), dict) and custom.get("name"):
            yield freeform_tool(custom, f"{where}.custom")
        offered.append((f"{where}.function", item.get("function")))
    offered += objects(body.get("functions"), "functions")
    for where, function in offered:
        if isinstance(function, dict) and function.get("name"):
            name = text(function["name"], f"{where}.name")
            yield tool(name, text(function.get("description"), f"{where}.description"), function.get("parameters"))


def _tools_not_granted(body: Mapping[str, Any]) -> dict[str, Any]:
    return not_granted(_described(item) for _, item in objects(body.get("tools"), "tools"))


def _described(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any], bool]:
    said = item.get("custom") or item.get("function")
    said = said if isinstance(said, dict) else {}
    return item, said, bool(said.get("name"))


def _choice(call: Call, index: int, answer: Answer) -> Mapping[str, Any]:
    parsed = answer.parsed
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.tool_calls:
        freeform = freeform_names(call.tools)
        message["content"] = parsed.content or None
        message["tool_calls"] = [asked_tool(asked, freeform) for asked in parsed.tool_calls]
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(answer.logprobs),
        "finish_reason": finish_reason(answer),
        **token_ids(call, answer.ids),
    }


def _logprobs(tokens: Sequence[TokenLogprob]) -> Mapping[str, Any] | None:
    return logprobs_body(tokens) if tokens else None
