"""The form of answer that a request asks for: JSON of a schema, or a call of certain tools.

Each API has its own words for it, and all become an `AnswerForm`. What is wrong is a 400 that names the field. The
fields are recorded as wishes too, as they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loopwright.gateway.dialects.gemini_schema import plain_tool
from loopwright.gateway.reading import chosen, json_text, kind_of, objects, strings, text
from loopwright.gateway.refusals import invalid
from loopwright.types import AnswerForm, Tool

CHAT_FORM = ("tool_choice", "function_call", "response_format")
RESPONSES_FORM = ("tool_choice", "text")
ANTHROPIC_FORM = ("tool_choice", "output_config", "output_format")
COMPLETION_FORM = ("response_format",)
GEMINI_FORM = ("responseMimeType", "responseSchema", "responseJsonSchema")
"""The fields that ask for a form. Gemini's are in `generationConfig`, and `toolConfig` is beside it."""
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
"""The words of vLLM's API for forms."""
LARGEST = 1 << 20
"""In bytes. Larger schemas would hold up everybody while their grammar is written."""

PARALLEL = "parallel_tool_calls"
SEE_REFERENCE = "send what the API's reference shows"


@dataclass(frozen=True, slots=True)
class _Schema:
    """A JSON schema that the answer is to fit, and the field that asks for it."""

    schema: Mapping[str, Any] | None
    field: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """The tools of which one must be called; None if none must be. `one`: exactly one call."""

    must: tuple[Tool, ...] | None = None
    one: bool = False


def chat_form(body: Mapping[str, Any], tools: Sequence[Tool]) -> AnswerForm | None:
    """`response_format` and `tool_choice` of Chat Completions, and the `function_call` of older clients."""
    body = chosen(body, (*CHAT_FORM, PARALLEL))
    field = choice_field(body)
    return _answer_form(_response_format(body), tools, _openai_choice(body, field, tools), field)


def choice_field(body: Mapping[str, Any]) -> str:
    """The field by which a chat chooses tools. Older clients have another one."""
    return "tool_choice" if body.get("tool_choice") is not None else "function_call"


def completion_form(body: Mapping[str, Any]) -> AnswerForm | None:
    """`response_format` of Completions."""
    return _answer_form(_response_format(chosen(body, COMPLETION_FORM)), (), _Choice(), "response_format")


def _response_format(body: Mapping[str, Any]) -> _Schema:
    asked = _object(body, "response_format")
    nested = _object(asked, "json_schema", "response_format.")
    return _asked_schema(asked, nested, "response_format", "response_format.json_schema.schema")


def refuse_guided(body: Mapping[str, Any]) -> None:
    for name in GUIDED:
        if body.get(name):
            raise invalid(name, "it is not granted here", remedy="ask for JSON with `response_format`")


def gemini_form(
    config: Mapping[str, Any], choice: Mapping[str, Any], tools: Sequence[Tool], schema: Mapping[str, Any] | None
) -> AnswerForm | None:
    """`responseMimeType` with `schema`, as JSON Schema has it, and `functionCallingConfig` (`choice`) of Gemini."""
    config = chosen(config, GEMINI_FORM)
    place = "toolConfig.functionCallingConfig"
    must = None
    if choice.get("mode") == "ANY":
        names = strings(choice, "allowedFunctionNames")
        named = [_named(name, tools, f"{place}.allowedFunctionNames") for name in names] or tools
        must = _offered(named, f"{place}.mode")
    field = next((name for name in GEMINI_FORM[1:] if name in config), GEMINI_FORM[0])
    match config.get("responseMimeType", "text/plain"):
        case "application/json":
            wanted = _Schema({} if schema is None else schema, f"generationConfig.{field}")
        case "text/plain" if schema is None:
            wanted = _Schema(None, field)
        case "text/plain":
            raise invalid(
                f"generationConfig.{field}",
                "a schema is for JSON",
                remedy="send `responseMimeType: application/json` with it",
            )
        case other:
            raise _unknown("generationConfig.responseMimeType", other)
    form = _answer_form(wanted, tools, _Choice(must), place)
    return form and replace(form, tools=tuple(map(plain_tool, form.tools)))


def responses_form(body: Mapping[str, Any], tools: Sequence[Tool]) -> AnswerForm | None:
    """`text.format` and `tool_choice` of Responses."""
    body = chosen(body, (*RESPONSES_FORM, PARALLEL))
    asked = _object(_object(body, "text"), "format", "text.")
    schema = _asked_schema(asked, asked, "text.format", "text.format.schema")
    return _answer_form(schema, tools, _openai_choice(body, "tool_choice", tools), "tool_choice")


def anthropic_form(body: Mapping[str, Any], tools: Sequence[Tool]) -> AnswerForm | None:
    """`output_config.format`, its older name `output_format`, and `tool_choice` of Messages."""
    body = chosen(body, ANTHROPIC_FORM)
    asked, field = _object(_object(body, "output_config"), "format", "output_config."), "output_config.format"
    if not asked:
        asked, field = _object(body, "output_format"), "output_format"
    schema = _asked_schema(asked, asked, field, f"{field}.schema")
    said = _object(body, "tool_choice")
    match said.get("type", "auto"):
        case "auto" | "none":
            must = None
        case "any":
            must = _offered(tools, "tool_choice")
        case "tool":
            must = (_named(said.get("name"), tools, "tool_choice.name"),)
        case other:
            raise _unknown("tool_choice.type", other)
    one = said.get("type") == "tool" or bool(said.get("disable_parallel_tool_use"))
    return _answer_form(schema, tools, _Choice(must, one), "tool_choice")


def _answer_form(schema: _Schema, tools: Sequence[Tool], choice: _Choice, choice_field: str) -> AnswerForm | None:
    """A tool that must be called leaves no place for JSON. If none must be, the model may still call one instead."""
    if choice.must is not None:
        form = AnswerForm(None, choice.must, choice.one, choice_field)
    elif schema.schema is not None:
        form = AnswerForm(schema.schema, tuple(tools), choice.one, schema.field)
    else:
        return None
    written = (form.schema, *(tool["parameters"] for tool in form.tools))
    if sum(len(json_text(one, form.asked_by)) for one in written) > LARGEST:
        raise invalid(form.asked_by, f"its schemas have more than {LARGEST:,} bytes", remedy="send smaller ones")
    return form


def _asked_schema(asked: Mapping[str, Any], holder: Mapping[str, Any], field: str, place: str) -> _Schema:
    """`holder` has the schema, at `place`."""
    match asked.get("type", "text"):
        case "text":
            return _Schema(None, field)
        case "json_object":
            return _Schema({"type": "object"}, field)
        case "json_schema":
            schema = holder.get("schema")
            if not isinstance(schema, dict):
                raise invalid(place, f"expected an object, got {kind_of(schema)}", remedy="send a JSON schema")
            return _Schema(schema, place)
        case other:
            raise _unknown(f"{field}.type", other)


def _openai_choice(body: Mapping[str, Any], field: str, tools: Sequence[Tool]) -> _Choice:
    one = body.get(PARALLEL) is False
    match body.get(field):
        case None | "auto" | "none":
            return _Choice(one=one)
        case "required":
            return _Choice(_offered(tools, field), one)
        case {"type": "allowed_tools", "allowed_tools": dict() as allowed}:
            return _allowed(allowed, tools, field, one)
        case {"type": "allowed_tools"} as flat:
            return _allowed(flat, tools, field, one)
        case {"type": "function" | "custom" as kind, **rest}:
            # Chat Completions nests the name, and Responses does not.
            nested = rest.get(kind)
            place = f"{field}.{kind}.name" if isinstance(nested, dict) else f"{field}.name"
            return _Choice((_named((nested if isinstance(nested, dict) else rest).get("name"), tools, place),), True)
        case {"name": name, **rest} if "type" not in rest:
            return _Choice((_named(name, tools, f"{field}.name"),), True)
        case {"type": kind}:
            raise invalid(
                f"{field}.type", f"this server has no tool of type {kind!r:.40}", remedy="name a function of `tools`"
            )
        case other:
            raise _unknown(field, other)


def _allowed(said: Mapping[str, Any], tools: Sequence[Tool], field: str, one: bool) -> _Choice:
    """Some of the tools may be called. If none must be, this is only recorded."""
    if said.get("mode") != "required":
        return _Choice(one=one)
    named = []
    for place, item in objects(said.get("tools"), f"{field}.tools"):
        nested = item.get("custom") if item.get("type") == "custom" else item.get("function")
        named.append(_named((nested if isinstance(nested, dict) else item).get("name"), tools, place))
    return _Choice(_offered(named, f"{field}.tools"), one)


def _offered(tools: Sequence[Tool], field: str) -> tuple[Tool, ...]:
    if not tools:
        raise invalid(field, "a tool must be called, and none is offered", remedy="send `tools` that the agent runs")
    return tuple(tools)


def _named(name: Any, tools: Sequence[Tool], field: str) -> Tool:
    wanted = text(name, field)
    found = next((tool for tool in tools if tool["name"] == wanted), None)
    if found is None:
        raise invalid(field, f"no tool {wanted!r:.80} is offered", remedy="name one of `tools` that the agent runs")
    return found


def _object(holder: Mapping[str, Any], name: str, before: str = "") -> Mapping[str, Any]:
    """A field that is an object. It is empty if the field is missing or null."""
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"{before}{name}", f"expected an object, got {kind_of(value)}", remedy=SEE_REFERENCE)
    return value


def _unknown(field: str, value: Any) -> Exception:
    return invalid(field, f"there is no {value!r:.40}", remedy=SEE_REFERENCE)
