"""What siblings are asked is rendered once, and nobody is given what another conversation was rendered to."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest

from loopwright.render.siblings import LATEST, RenderedOnce
from loopwright.types import Message, Tool

ASKED = {"role": "user", "content": "Add 3 and 4."}
TOOL = {"name": "add", "parameters": {"type": "object"}}


class Counted:
    """Renders to a new number each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, messages: Sequence[Message], tools: Sequence[Tool], most: int | None = None) -> tuple[int, ...]:
        self.calls += 1
        return (self.calls,)


def test_the_same_conversation_is_rendered_once() -> None:
    render = Counted()
    once = RenderedOnce(render)
    assert once([ASKED], ()) == once((dict(ASKED),), []) == (1,)
    assert once([ASKED], [TOOL]) == once([ASKED], (TOOL,)) == (2,)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "content": "Add 3 and 4. "},
        {"role": "system", "content": "Add 3 and 4."},
        {"content": "Add 3 and 4.", "role": "user"},
        {"role": "user", "content": "Add 3 and 4.", "reasoning": ""},
        MappingProxyType(ASKED),
    ],
)
def test_another_conversation_is_rendered_by_itself(other: Any) -> None:
    once = RenderedOnce(Counted())
    assert once([ASKED], ()) == (1,)
    assert once([other], ()) == (2,)
    assert once([ASKED, other], ()) == (3,)
    assert once([ASKED], ()) == (1,)


def test_what_json_cannot_spell_is_rendered_each_time() -> None:
    once = RenderedOnce(Counted())
    half = [{"role": "user", "content": "\ud800"}]
    assert (once(half, ()), once(half, ())) == ((1,), (2,))


def test_what_json_spells_alike_is_rendered_each_time() -> None:
    once = RenderedOnce(Counted())
    defaults = [None, float("inf"), float("-inf"), float("nan")]
    assert len({once([ASKED], [TOOL | {"default": value}]) for value in defaults}) == len(defaults)


def test_what_is_remembered_is_bounded() -> None:
    render = Counted()
    once = RenderedOnce(render)
    for number in range(LATEST + 1):
        once([{"role": "user", "content": str(number)}], ())
    once([{"role": "user", "content": str(LATEST)}], ())
    assert render.calls == LATEST + 1
    once([{"role": "user", "content": "0"}], ())
    assert render.calls == LATEST + 2
