"""Completions read in Hermes' way: exact, final in every piece, and nothing lost."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopwright.render.hermes import CALL, CALL_END, HermesParser, Syntax, parse_text
from loopwright.types import ContentDelta, Delta, Parsed, ToolCall, ToolCallStart, parsed_of

ALL = Syntax(calls=True, thoughts=True)
PLAIN = Syntax(calls=False, thoughts=False)

arguments = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=8) | st.floats(-9, 9))
pieces = st.sampled_from(
    [
        CALL,
        CALL_END,
        "<think>",
        "</think>",
        "<",
        "</",
        "tool_call>",
        " ",
        "\n",
        "hé",
        "€",
        '"',
        "{",
        "}",
        '{"name": "f"}',
    ]
) | st.text(max_size=4)
completions = st.lists(pieces, max_size=12).map("".join)
syntaxes = st.builds(Syntax, st.booleans(), st.booleans(), st.booleans())


def call(name: str, text: str) -> str:
    return f'{CALL}{{"name": {json.dumps(name)}, "arguments": {text}}}{CALL_END}'


@given(completions, st.lists(st.integers(0, 40)), syntaxes)
@example("a <tool_call", [3], ALL)
@example(" <think", [2], ALL)
def test_how_a_completion_is_cut_does_not_matter(text: str, cuts: list[int], syntax: Syntax) -> None:
    places = [0, *sorted(cuts), len(text)]
    chunks = [text[a:b] for a, b in pairwise(places)]
    for cut in (chunks, list(text)):
        parser = HermesParser(syntax)
        deltas = [delta for chunk in cut for delta in parser.feed(chunk)] + parser.finish()
        assert parsed_of(deltas) == parse_text(text, syntax)


@given(completions)
def test_without_tools_and_thoughts_the_content_is_the_text(text: str) -> None:
    assert parse_text(text, PLAIN) == Parsed(text)


@given(completions)
def test_what_is_no_call_is_content_to_the_letter(text: str) -> None:
    parsed = parse_text(text, Syntax(calls=True))
    if not parsed.tool_calls:
        assert parsed.content == text


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "add", "parameters": {"a" : 1}}', '{"a" : 1}'),
        ('{"parameters": "{\\"a\\": 1}", "name": "add"}', '{"a": 1}'),
        ('{"name": "add", "parameters": {"a": 1}, "arguments": {"b": 2}}', '{"b": 2}'),
    ],
)
def test_parameters_are_arguments_by_another_name(body: str, arguments: str) -> None:
    parsed = parse_text(f"{CALL}{body}{CALL_END}", Syntax(calls=True))
    assert parsed.tool_calls == (ToolCall("add", arguments),)


@given(st.text(max_size=8), st.lists(st.tuples(st.sampled_from(["add", "naïve"]), arguments), max_size=3))
def test_calls_are_read_with_the_spelling_of_their_arguments(
    content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    for spell in (
        lambda value: json.dumps(value),
        lambda value: json.dumps(value, ensure_ascii=False, separators=(" ,  ", ":")),
        lambda value: json.dumps(value, indent=2),
    ):
        written = [(name, spell(value)) for name, value in calls]
        text = content + "\n".join(call(name, spelled) for name, spelled in written)
        parsed = parse_text(text, Syntax(calls=True))
        assert parsed.tool_calls == tuple(ToolCall(name, spelled) for name, spelled in written)
        assert parsed.content == (content.rstrip(" \t\r\n") if calls else content)


@pytest.mark.parametrize(
    "broken",
    [
        f"{CALL}not JSON{CALL_END}",
        f"{CALL}{{}}{CALL_END}",
        f'{CALL}{{"name": ""}}{CALL_END}',
        f'{CALL}{{"name": 3, "arguments": {{}}}}{CALL_END}',
        f'{CALL}{{"name": "f", "arguments": [1]}}{CALL_END}',
        f'{CALL}{{"name": "f", "arguments": {{"x": NaN}}}}{CALL_END}',
        f'{CALL}{{"name": "f", "arguments": "no"}}{CALL_END}',
        f'{CALL}{{"name": "f",}}{CALL_END}',
        f'{CALL}{{"name": "f"}} and{CALL_END}',
        f'{CALL}{{"name": "\\ud800", "arguments": {{}}}}{CALL_END}',
        f'{CALL}{{"name": "f", "arguments": {{"x": "never ends',
        f'{CALL}{{"name": "f", "arguments": {"[" * 5000}{CALL_END}',
        f'{CALL}{{"name": "f", "arguments": {{"x": {"9" * 5000}}}}}{CALL_END}',
    ],
)
def test_a_malformed_call_is_content_and_the_next_one_still_a_call(broken: str) -> None:
    assert parse_text(broken, ALL) == Parsed(broken)
    if broken.endswith(CALL_END):
        parsed = parse_text(f"{broken}\n{call('add', '{}')}", ALL)
        assert parsed == Parsed(broken, tool_calls=(ToolCall("add", "{}"),))


def test_a_mark_inside_an_argument_does_not_end_the_call() -> None:
    text = json.dumps({"code": f"print('{CALL_END}') {CALL}"})
    assert parse_text(call("run", text), ALL).tool_calls == (ToolCall("run", text),)


def test_arguments_that_are_json_in_a_text_are_unwrapped() -> None:
    assert parse_text(call("f", json.dumps('{"a":  1}')), ALL).tool_calls == (ToolCall("f", '{"a":  1}'),)


def test_a_call_whose_end_was_never_written_counts_if_its_json_is_whole() -> None:
    assert parse_text(call("f", '{"a": 1}').removesuffix(CALL_END), ALL).tool_calls == (ToolCall("f", '{"a": 1}'),)


def test_a_call_is_told_only_when_it_is_certain_and_words_as_soon_as_they_are() -> None:
    parser = HermesParser(Syntax(calls=True))
    assert parser.feed("Let me see. <tool") == [ContentDelta("Let me see.")]
    assert parser.feed('_call>{"name": "f", "argum') == []
    told: list[Delta] = parser.feed('ents": {}}</tool_call>')
    assert told[0] == ToolCallStart(0, "f")


def test_thoughts_come_first_and_end_once() -> None:
    text = "<think>\none\n</think>\n\ntwo <think>three</think>"
    assert parse_text(text, ALL) == Parsed("two <think>three</think>", "one")
    assert parse_text("so </think> 4", Syntax(thoughts=True, thinking=True)) == Parsed("4", "so")
    assert parse_text("never ends ", Syntax(thoughts=True, thinking=True)) == Parsed("", "never ends")
    assert parse_text(text, Syntax(thoughts=False)) == Parsed(text)
