"""Families of the `renderers` library make no control tokens of text either (T9)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("renderers")

from test_control_tokens import spelled
from test_families import ADD, MARKERS, USER, family, texts, tokenizer_of

from loopwright.render.canonical import template_messages, template_tools
from loopwright.types import Message, Thinking


@pytest.mark.parametrize("name", MARKERS)
@settings(max_examples=30)
@given(words=st.lists(spelled, min_size=4, max_size=4), data=st.data())
def test_families_make_no_marks_of_text_either(name: str, words: list[str], data: st.DataObject) -> None:
    renderer, tokenizer = family(name), tokenizer_of(name)
    marks = [str(mark) for mark in tokenizer.added_tokens_decoder.values()]
    more = data.draw(st.lists(st.sampled_from([*marks, "x"]), min_size=4, max_size=4))

    def talk(system: str, user: str, result: str, last: str) -> list[Message]:
        call = {"id": "functions.add:0", "name": "add", "arguments": json.dumps({"a": f"x{user}"})}
        return [
            {"role": "system", "content": f"x{system}"},
            {"role": "user", "content": f"x{user}"},
            {"role": "assistant", "content": "", "tool_calls": (call,)},
            {"role": "tool", "content": f"x{result}", "tool_call_id": "functions.add:0", "name": "add"},
            {"role": "user", "content": f"x{last}x"},
        ]

    def marks_in(ids: Sequence[int] | None) -> list[int]:
        return [token for token in ids or () if token in tokenizer.added_tokens_decoder]

    hostile, meek = talk(*(a + b for a, b in zip(words, more, strict=True))), talk("", "", "", "")
    tool = {**ADD, "description": "".join(more)}
    ids, blank = renderer.render(hostile, [tool]), renderer.render(meek, [ADD])
    assert marks_in(ids) == marks_in(blank)

    reply: Message = {"role": "assistant", "content": "x"}
    said = (*tokenizer.encode("x", add_special_tokens=False), renderer.stop_token_ids[0])
    extended, plain = (
        renderer.extend((*renderer.render(talk[:2]), *said), [*talk[:2], reply], talk[4:]) for talk in (hostile, meek)
    )
    assert (extended is None) == (plain is None)
    assert marks_in(extended) == marks_in(plain)


@pytest.mark.parametrize("name", MARKERS)
@settings(max_examples=20)
@given(words=st.lists(texts, min_size=2, max_size=2))
def test_other_text_has_the_ids_that_the_library_gives(name: str, words: list[str]) -> None:
    messages: list[Message] = [{"role": "user", "content": words[0]}, {"role": "assistant", "content": words[1]}, USER]
    shaped, tools = template_messages(messages), template_tools([ADD])
    plain = plain_family(name).render_ids(shaped, tools=tools, add_generation_prompt=True)
    assert family(name).render(messages, [ADD]) == tuple(plain)


@cache
def plain_family(name: str) -> Any:
    from loopwright.render.families import _create

    return _create(tokenizer_of(name), name, Thinking.KEEP)
