"""Writes the grammar of an answer's form, as a model writes thoughts, JSON and calls.

The grammar is llguidance's Lark. Marks that are tokens of their own are named by their ids, because their spelling in
other tokens is no mark (T9).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.errors import ConstraintError
from loopwright.render.closed_schema import closed
from loopwright.types import AnswerForm, Constraint, GrammarKind, Tool

WRITING: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written: on one line, as models have mostly read it. Where any white space may come, a model that strays
writes nothing else until its budget is spent."""

Pieces = tuple[str | int, ...]
"""Texts, and the ids of marks that are tokens of their own."""

THINKING = "/(?s:.*)/"
GAP = r"/[ \n]{0,2}/"
"""What models write between a thought and their answer."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a call is written: pieces, its tool's name, more pieces, its arguments as JSON, and the rest. `joint` is
    between two calls; None means that one answer can have one call only."""

    before: Pieces
    between: Pieces
    after: Pieces
    joint: Pieces | None


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """The marks of a thought before the answer. If it is `opened`, the prompt ends inside of it. Otherwise the model
    may leave it out."""

    begin: str | int
    end: str | int
    opened: bool


def answer_grammar(
    form: AnswerForm, calls: CallSyntax | None, thought: ThoughtSyntax | None, frame: tuple[Pieces, Pieces] = ((), ())
) -> Constraint:
    """The grammar of a whole answer. A thought comes first and is free. `frame` is before and after JSON. Without
    `calls`, nobody knows how this model writes them."""
    if form.tools and calls is None:
        raise ConstraintError(
            "this model's calls are not written as JSON, so no grammar has a place for them",
            remedy="leave the choice of tools to the model (auto) and ask for no schema, or offer no tools",
        )
    if thought is None and form.schema is not None and not form.tools and not any(map(_text, frame)):
        return Constraint(GrammarKind.JSON_SCHEMA, json.dumps(closed(form.schema)))
    rules = [*_rules(form, thought, frame), *(_call_rules(form, calls) if calls is not None else ())]
    return Constraint(GrammarKind.LARK, "\n".join([*rules, ""]))


def as_lark(constraint: Constraint) -> str:
    """The same grammar as Lark, which says how JSON is written. A bare schema does not say it."""
    if constraint.kind is GrammarKind.LARK:
        return constraint.text
    try:
        schema = json.loads(constraint.text)
    except ValueError as error:
        raise ConstraintError(
            f"the schema is no JSON: {error}", remedy="send a JSON schema, or a grammar with `kind: grammar`"
        ) from error
    if isinstance(schema, dict):
        schema = {"x-guidance": WRITING, **schema}
    return f"start: %json {json.dumps(schema)}\n"


def _rules(form: AnswerForm, thought: ThoughtSyntax | None, frame: tuple[Pieces, Pieces]) -> Iterator[str]:
    kinds = [*(["content"] if form.schema is not None else []), *(["calls"] if form.tools else [])]
    yield f"start: {'thought ' if thought else ''}answer"
    yield f"answer: {' | '.join(kinds)}"
    if thought is not None:
        yield from _thought(thought)
    if form.schema is not None:
        yield f"content: {' '.join(filter(None, (_text(frame[0]), 'json', _text(frame[1]))))}"
        yield f"json: {_json(form.schema)}"


def _call_rules(form: AnswerForm, calls: CallSyntax) -> Iterator[str]:
    if form.tools:
        only_one = form.one_call or calls.joint is None
        yield "calls: call" if only_one else f"calls: call ({_text(calls.joint or ())} call)*"
        yield f"call: {' | '.join(f'call_{number}' for number in range(len(form.tools)))}"
    for number, tool in enumerate(form.tools):
        # The schema is a root of its own, so that references in it stay what they are.
        name = json.dumps(tool["name"], ensure_ascii=False)[1:-1]
        head, tail = _text((*calls.before, name, *calls.between)), _text(calls.after)
        yield f"call_{number}: {head} arguments_{number} {tail}"
        yield f"arguments_{number}: {_json(_parameters(tool))}"


def _thought(thought: ThoughtSyntax) -> Iterator[str]:
    begin = "" if thought.opened else _text((thought.begin,))
    end = "" if isinstance(thought.end, str) else _text((thought.end,))
    whole = " ".join(part for part in (begin, "thinking", end, GAP) if part)
    yield f"thought: {whole}" if thought.opened else f"thought: ({whole})?"
    lazily = f"[suffix={json.dumps(thought.end)}]" if isinstance(thought.end, str) else ""
    yield f"thinking{lazily}: {THINKING}"


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """A tool's schema. Arguments are always an object."""
    parameters: Mapping[str, Any] = tool["parameters"]
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ConstraintError(
            f"the parameters of the tool {tool['name']!r} are of type {kind!r}, so no call of it can be written",
            remedy="give it parameters of type object",
        )
    return {**parameters, "type": "object"}


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({'x-guidance': WRITING, **closed(schema)})}"


def _text(pieces: Pieces) -> str:
    """Pieces as parts of a rule. Neighbouring texts become one."""
    parts: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        elif piece != "":
            parts.append(piece)
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False) for part in parts)
