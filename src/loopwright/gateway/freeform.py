"""Freeform tools: the client wants their input as plain text, such as a patch, and not as JSON.

The model is offered a function that takes one text, because its template knows only functions. The invariant: a call is
recorded as `{"input": TEXT}` with the text that the client got, so a history that has the call continues its chain. A
grammar of the input is told to the model and not enforced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from loopwright.gateway.reading import json_text, text
from loopwright.render.canonical import value_of
from loopwright.types import Parsed, Tool

INPUT = "input"
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": [INPUT],
}
"""What every freeform tool takes. Tools are recorded, so this also tells which of them are freeform."""


def freeform_tool(said: Mapping[str, Any], where: str) -> Tool:
    about = text(said.get("description"), f"{where}.description")
    if grammar := grammar_of(said):
        syntax, definition = (text(grammar.get(name), f"{where}.format.{name}") for name in ("syntax", "definition"))
        about = f"{about}\nThe input follows this grammar ({syntax}):\n{definition}".strip()
    return {"name": text(said.get("name"), f"{where}.name"), "description": about, "parameters": PARAMETERS}


def grammar_of(said: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The grammar of a freeform tool's input, if it has one. The two APIs of OpenAI nest it differently."""
    wanted = said.get("format")
    if not isinstance(wanted, dict) or wanted.get("type") != "grammar":
        return None
    nested = wanted.get("grammar")
    return nested if isinstance(nested, dict) else wanted


def not_granted(tools: Iterable[tuple[Mapping[str, Any], Mapping[str, Any], bool]]) -> dict[str, Any]:
    """What is not granted of tools, to be listed with the agent's wishes. For each tool: its item, the part of it that
    says its format, and whether it is offered to the model."""
    left_out, grammars = set[str](), list[str]()
    for item, said, is_offered in tools:
        if not is_offered:
            left_out.add(str(item.get("type")))
        elif grammar_of(said):
            grammars.append(str(said.get("name")))
    found = {"tools_left_out": sorted(left_out), "grammars_not_enforced": grammars}
    return {name: value for name, value in found.items() if value}


def freeform_names(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool["name"] for tool in tools if tool["parameters"] == PARAMETERS)


def arguments_of(written: str, where: str) -> str:
    """The arguments of the call whose input is this text."""
    return json_text({INPUT: written}, where)


def input_of(arguments: str) -> str:
    """The input as plain text. A model may write other arguments than it should: then they are the input, so that the
    tool can tell it what is wrong."""
    value = value_of(arguments)
    wanted = value.get(INPUT) if isinstance(value, dict) and len(value) == 1 else None
    return wanted if isinstance(wanted, str) else arguments


def with_inputs(parsed: Parsed, freeform: Collection[str]) -> Parsed:
    """The reply with the calls of freeform tools as they are recorded."""
    if not freeform or not any(call.name in freeform for call in parsed.tool_calls):
        return parsed
    calls = (
        replace(call, arguments=orjson.dumps({INPUT: input_of(call.arguments)}).decode())
        if call.name in freeform
        else call
        for call in parsed.tool_calls
    )
    return replace(parsed, tool_calls=tuple(calls))
