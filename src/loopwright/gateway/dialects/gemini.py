"""Gemini's generateContent and streamGenerateContent, which gemini-cli speaks.

In this API the model and whether to stream are in the path; the gateway puts both into the body before it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, Wishes, sample_id, tool_call_id
from loopwright.gateway.dialects.dialect import (
    Head,
    Recall,
    Stream,
    alternatives_of,
    answer_begun,
    answers_asked,
    arguments_object,
    event,
    nothing,
    tool,
)
from loopwright.gateway.dialects.forms import GEMINI_FORM, gemini_form
from loopwright.gateway.dialects.gemini_input import camel_names, read_contents, system_text
from loopwright.gateway.dialects.gemini_schema import json_schema, plain_schema
from loopwright.gateway.dialects.gemini_words import (
    candidate,
    gemini_error,
    gemini_response,
    gemini_usage,
    shows_thoughts,
)
from loopwright.gateway.reading import (
    IGNORED,
    check_recordable,
    chosen,
    count,
    flag,
    ignored,
    model_name,
    number,
    objects,
    strings,
    text,
)
from loopwright.gateway.refusals import invalid
from loopwright.types import (
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

MOST_CANDIDATES = 8
SCHEMAS = ("parametersJsonSchema", "parameters")
UNGRANTED = (
    "presencePenalty",
    "frequencyPenalty",
    "thinkingConfig",
    "responseModalities",
    "speechConfig",
    "mediaResolution",
)
"""Settings inside `generationConfig`."""
UNGRANTED_OUTSIDE = ("toolConfig", "safetySettings")
GRANTED = (
    "responseLogprobs",
    "candidateCount",
    "maxOutputTokens",
    "stopSequences",
    "temperature",
    "topP",
    "topK",
    "seed",
)
GRANTED_OUTSIDE = (
    *("contents", "systemInstruction", "tools", "generationConfig", "cachedContent", "model", "stream"),
    # Of no matter for the answer.
    *("labels", "store", "serviceTier"),
)
WISHES = (*GEMINI_FORM, *UNGRANTED, "logprobs")
KNOWN, KNOWN_OUTSIDE = frozenset((*GRANTED, *WISHES)), frozenset((*GRANTED_OUTSIDE, *UNGRANTED_OUTSIDE))


class Gemini:
    """A `Dialect`."""

    name = "gemini"

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        body = camel_names(body)
        if body.get("cachedContent") is not None:
            raise invalid("cachedContent", "this server keeps none", remedy="send the whole conversation as `contents`")
        system = system_text(body)
        preamble: list[Message] = [{"role": "system", "content": system}] if system else []
        said = tuple(read_contents(body.get("contents")))
        if not said:
            raise invalid("contents", "there are none", remedy="send at least one content")
        messages, begun = (*preamble, *said), ""
        if said[-1]["role"] == "assistant":
            messages, begun = answer_begun(messages)
        config = _object(body, "generationConfig")
        choice = _object(_object(body, "toolConfig"), "functionCallingConfig")
        tools = () if choice.get("mode") == "NONE" else tuple(_tools(body))
        return Call(
            messages=messages,
            tools=tools,
            form=gemini_form(config, choice, tools, _asked_schema(config)),
            wishes=_wishes(body, config),
            model=model_name(body),
            stream=flag(body, "stream"),
            samples=answers_asked(config, "candidateCount", MOST_CANDIDATES),
            begun=begun,
            logprobs=flag(config, "responseLogprobs"),
            alternatives=_alternatives(config),
            alternatives_field="generationConfig.logprobs",
            echo={"thoughts": shows_thoughts(config)},
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        candidates = [candidate(index, list(_parts(answer, call)), answer) for index, answer in enumerate(answers)]
        return gemini_response(call, answers[0].id, candidates, gemini_usage(answers))

    def stream(self, call: Call, head: Head) -> Stream:
        return GeminiStream(call, head)

    def error(self, error: RefusedError) -> Mapping[str, Any]:
        return gemini_error(error)


class GeminiStream:
    """A `Stream`. Each event is a response with the parts that are new; a call is one part."""

    def __init__(self, call: Call, head: Head) -> None:
        self._call = call
        self._head = head
        self._calls: dict[tuple[int, int], ToolCall] = {}

    def start(self) -> bytes:
        return b""

    def delta(self, sample: int, delta: Delta) -> bytes:
        match delta:
            case ContentDelta(text):
                return self._part(sample, {"text": text})
            case ReasoningDelta(text):
                return self._part(sample, {"text": text, "thought": True}) if self._call.echo["thoughts"] else b""
            case ToolCallStart(index, name, call_id):
                known = call_id or tool_call_id(sample_id(self._head.id, sample), index)
                self._calls[sample, index] = ToolCall(name, "", known)
                return b""
            case ToolCallArguments(index, text):
                call = self._calls[sample, index]
                self._calls[sample, index] = ToolCall(call.name, call.arguments + text, call.id)
                return b""
            case ToolCallEnd(index):
                return self._part(sample, _call_part(self._calls[sample, index]))

    def end(self, answers: Sequence[Answer]) -> bytes:
        candidates = [candidate(index, [], answer) for index, answer in enumerate(answers)]
        return event(gemini_response(self._call, self._head.id, candidates, gemini_usage(answers)))

    def failed(self, error: RefusedError) -> bytes:
        return event(gemini_error(error))

    def _part(self, sample: int, part: Mapping[str, Any]) -> bytes:
        return event(gemini_response(self._call, self._head.id, [candidate(sample, [part])]))


def _parts(answer: Answer, call: Call) -> Iterator[Mapping[str, Any]]:
    parsed = answer.parsed
    if parsed.reasoning and call.echo["thoughts"]:
        yield {"text": parsed.reasoning, "thought": True}
    if parsed.content or not parsed.tool_calls:
        yield {"text": parsed.content}
    yield from map(_call_part, parsed.tool_calls)


def _call_part(call: ToolCall) -> Mapping[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments_object(call.arguments)}}


def _wishes(body: Mapping[str, Any], config: Mapping[str, Any]) -> Wishes:
    return Wishes(
        max_tokens=count(config, "maxOutputTokens"),
        stop=strings(config, "stopSequences"),
        temperature=number(config, "temperature", least=0, most=2),
        top_p=number(config, "topP", least=0, most=1),
        top_k=count(config, "topK", least=0),
        seed=count(config, "seed", least=-(1 << 63), most=1 << 63),
        others=chosen(config, WISHES)
        | chosen(body, UNGRANTED_OUTSIDE)
        | _ignored(body, config)
        | _tools_left_out(body),
    )


def _ignored(body: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    outside = ignored(body, KNOWN_OUTSIDE).get(IGNORED, [])
    inside = ignored(config, KNOWN, "generationConfig.").get(IGNORED, [])
    return {IGNORED: [*outside, *inside]} if outside or inside else {}


def _alternatives(config: Mapping[str, Any]) -> int:
    asked = alternatives_of(config, "logprobs")
    if asked and not flag(config, "responseLogprobs"):
        raise invalid("logprobs", "there are no logprobs", remedy="send `responseLogprobs: true` with it")
    return asked


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    """The functions. Their schemas may be in Google's own form, with types in capitals."""
    for where, item in objects(body.get("tools"), "tools"):
        for place, said in objects(item.get("functionDeclarations"), f"{where}.functionDeclarations"):
            check_recordable([said.get(name) for name in SCHEMAS], f"{place}.parameters")
            schema = said.get("parametersJsonSchema") or json_schema(said.get("parameters"))
            if name := text(said.get("name"), f"{place}.name"):
                yield tool(name, text(said.get("description"), f"{place}.description"), schema)


def _tools_left_out(body: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {kind for _, item in objects(body.get("tools"), "tools") for kind in item if item[kind] is not None}
    left_out = sorted(kinds - {"functionDeclarations"})
    return {"tools_left_out": left_out} if left_out else {}


def _asked_schema(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that the answer is to fit. Google's own form becomes that of JSON Schema."""
    said = chosen(config, GEMINI_FORM)
    if "responseJsonSchema" in said:
        return _object(said, "responseJsonSchema")
    return plain_schema(json_schema(_object(said, "responseSchema"))) if "responseSchema" in said else None


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(name, "expected an object", remedy="send an object, as the API's reference shows")
    return value or {}
