"""The grammars of forms of answers: whatever keeps them is read back as what was asked for (T9)."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from templates import HERMES
from test_families import USER, family, tokenizer_of

from loopwright.errors import ConstraintError
from loopwright.ports import Renderer
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.closed_schema import closed
from loopwright.testing.tiny import CHATML, tiny_tokenizer
from loopwright.types import AnswerForm, Constraint, GrammarKind, Tool

VERDICT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"right": {"$ref": "#/$defs/flag"}},
    "required": ["right"],
    "$defs": {"flag": {"type": "boolean"}},
}


def tool(name: str) -> Tool:
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}
    return {"name": name, "description": "", "parameters": {**parameters, "$defs": {"n": {"type": "integer"}}}}


TOOLS = tuple(map(tool, ("add", "add_up", 'sub"tract\\', "\u4e2d \u00e9")))


def written(
    constraint: Constraint, tokenizer: Any, seed: int, prefer: Sequence[int] = (), begin: Sequence[int] = ()
) -> list[int]:
    """A random walk through the grammar after `begin`. It takes legal tokens that it prefers more often."""
    vocabulary = len(tokenizer)
    known = llguidance.LLTokenizer(
        tokenizer.backend_tokenizer.to_str(), n_vocab=vocabulary, eos_token=tokenizer.eos_token_id
    )
    lark = constraint.kind is GrammarKind.LARK
    grammar = llguidance.LLMatcher.grammar_from_lark(constraint.text) if lark else constraint.text
    if not lark:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(grammar, defaults={"whitespace_flexible": False})
    matcher = llguidance.LLMatcher(known, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    choose, said, mask = random.Random(seed), list(begin), allocate_token_bitmask(1, vocabulary)
    assert matcher.consume_tokens(said), matcher.get_error()
    while len(said) < 2000:
        fill_next_token_bitmask(matcher, mask, 0)
        legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocabulary]).tolist()
        wanted = [token for token in prefer if token in legal]
        token = choose.choice(wanted if wanted and choose.random() < 0.2 else legal)
        if token == tokenizer.eos_token_id:
            return said
        said.append(token)
        assert matcher.consume_token(token), matcher.get_error()
    raise AssertionError("the walk found no end")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("template", [None, HERMES])
def test_required_calls_are_read_back_as_calls(template: str | None, seed: int) -> None:
    tokenizer = tiny_tokenizer() if template is None else tiny_tokenizer(template)
    renderer = ChatTemplateRenderer(tokenizer)
    said = written(renderer.constraint(AnswerForm(None, TOOLS), ()), tokenizer, seed)
    read = renderer.parse(said, TOOLS)
    assert read.content == ""
    assert read.tool_calls
    for call in read.tool_calls:
        assert call.name in {one["name"] for one in TOOLS}
        assert [type(value) for value in json.loads(call.arguments).values()] == [int]
    one = renderer.constraint(AnswerForm(None, TOOLS, one_call=True), ())
    assert len(renderer.parse(written(one, tokenizer, seed), TOOLS).tool_calls) == 1


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_a_thought_comes_first_and_is_free(opened: bool, marked: bool) -> None:
    """With marks that are tokens of their own, and with marks that are spelled."""
    template = CHATML.replace("{% if add_generation_prompt %}", "{# <think> </think> #}{% if add_generation_prompt %}")
    tokenizer = tiny_tokenizer(template.replace("assistant\n' }}", "assistant\n<think>\n' }}") if opened else template)
    if marked:
        tokenizer.add_tokens(["<think>", "</think>"])
    renderer = ChatTemplateRenderer(tokenizer)
    prompt = renderer.render([USER])
    constraint = renderer.constraint(AnswerForm(VERDICT), prompt)
    assert constraint.kind is GrammarKind.LARK
    thought = f"{'' if opened else '<think>'}is {{it}} <b>?</think>"
    said = written(constraint, tokenizer, 1, begin=tokenizer.encode(thought))
    read = renderer.parse(said, (), prompt)
    assert read.reasoning == "is {it} <b>?"
    assert isinstance(json.loads(read.content)["right"], bool)
    if not opened:
        assert json.loads(renderer.parse(written(constraint, tokenizer, 2, begin=tokenizer.encode("{")), ()).content)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["qwen3", "qwen3-vl", "llama-3"])
def test_families_write_calls_in_their_own_syntax_and_marks(name: str, seed: int) -> None:
    renderer, tokenizer = family(name), tokenizer_of(name)
    prompt = renderer.render([USER], TOOLS[:2])
    prefer = [tokenizer.convert_tokens_to_ids("</think>")]
    said = written(renderer.constraint(AnswerForm(None, TOOLS[:2]), prompt), tokenizer, seed, prefer)
    read = renderer.parse([*said, renderer.stop_token_ids[0]], TOOLS[:2], prompt)
    assert {call.name for call in read.tool_calls} <= {"add", "add_up"}
    assert read.tool_calls
    assert not read.content
    answered = written(renderer.constraint(AnswerForm(VERDICT), prompt), tokenizer, seed, prefer)
    content = renderer.parse([*answered, renderer.stop_token_ids[0]], (), prompt).content
    assert isinstance(json.loads(content)["right"], bool)


@pytest.mark.parametrize("name", ["glm-5", "kimi-k2", "minimax-m2"])
def test_a_family_whose_calls_have_no_grammar_is_refused(name: str) -> None:
    renderer: Renderer = family(name)
    prompt = renderer.render([USER], TOOLS[:1])
    for form in (AnswerForm(None, TOOLS[:1]), AnswerForm(VERDICT, TOOLS[:1])):
        with pytest.raises(ConstraintError):
            renderer.constraint(form, prompt)


def test_a_tool_whose_parameters_are_no_object_is_refused() -> None:
    odd = {"name": "odd", "description": "", "parameters": {"type": "string"}}
    with pytest.raises(ConstraintError, match="'odd'"):
        ChatTemplateRenderer(tiny_tokenizer()).constraint(AnswerForm(None, (odd,)), ())


def test_objects_that_list_properties_have_no_others() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    shut = {**inner, "additionalProperties": False}
    assert closed(inner) == shut
    assert closed({"type": "array", "items": inner}) == {"type": "array", "items": shut}
    assert closed({"$ref": "#/x", "description": "One."}) == {"$ref": "#/x", "description": "One."}
    named = {"properties": {"allOf": {"type": "array", "items": inner}, "anyOf": inner, "if": inner}}
    assert closed(named)["additionalProperties"] is False
    assert closed(named)["properties"]["allOf"]["items"] == shut
    assert closed({"properties": {"a": {"enum": [{"allOf": [1, 2]}]}}})["additionalProperties"] is False
    assert closed({"anyOf": [inner, {"type": "null"}]}) == {"anyOf": [shut, {"type": "null"}]}
    assert closed({"$defs": {"x": inner}, "$ref": "#/$defs/x"}) == {"$defs": {"x": shut}, "$ref": "#/$defs/x"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
        {"enum": [{"properties": {"a": 1}}]},
        {"$ref": "#/$defs/b", "properties": {"x": {}}, "required": ["x"], "$defs": {"b": {"properties": {"y": {}}}}},
        {"allOf": [{"$ref": "#/$defs/b"}], "properties": {"x": {}}, "$defs": {"b": {"properties": {"y": {}}}}},
        {"properties": {"k": {}}, "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"required": ["k"], "anyOf": [{"properties": {"a": {}}}]},
        {"properties": {"a": {}}, "required": ["a", "b"]},
        {"if": {"properties": {"a": {}}}, "then": {"properties": {"b": {}}}},
    ],
)
def test_what_may_have_more_properties_stays_open(schema: Mapping[str, Any]) -> None:
    assert closed(schema) == schema
