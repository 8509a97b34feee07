"""What a judger returned: a score that can be stored, or a JudgeError that shows what came (R1, R2)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from loopwright.errors import JudgeError
from loopwright.judgers.verdict import Signature
from loopwright.types import Scored

SIGNATURE = Signature("mine", "mine.py:judge")


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("value", [1, True, 1.0, Fraction(1), np.float32(1), np.bool_(True), Scored(1)])
def test_whatever_is_a_number_is_a_score(value: Any) -> None:
    scored = SIGNATURE.scored(value)
    assert scored == Scored(1.0)
    assert type(scored.value) is float


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Scored(1.0, 0.5), "Scored with the parts 0.5"),  # type: ignore[arg-type]
        (Scored(1.0, None), "Scored with the parts None"),  # type: ignore[arg-type]
        (Scored(1.0, {("a", "b"): 1.0}), r"Scored with the parts \{\('a', 'b'\): 1.0\}"),  # type: ignore[dict-item]
        (Scored(1.0, answer=Fraction(1, 2)), r"the answer Fraction\(1, 2\) of type Fraction"),  # type: ignore[arg-type]
        (Scored(1.0, answer=42), "the answer 42 of type int"),  # type: ignore[arg-type]
        (Scored(1.0, {"a": "b"}), "must return a finite number or Scored"),  # type: ignore[dict-item]
        (np.array(1.0), "of type ndarray"),
        pytest.param(10**5000, "a value that cannot be shown of type int", id="huge"),
        (Unspeakable(), "a value that cannot be shown of type Unspeakable"),
    ],
)
def test_what_cannot_be_stored_is_an_error_that_shows_it(value: Any, words: str) -> None:
    with pytest.raises(JudgeError, match=words) as caught:
        SIGNATURE.scored(value)
    assert caught.value.facts["error"] == "WrongReturn"


@pytest.mark.parametrize("values", [np.array([0.0, 1.0]), [0, 1], (False, Scored(1.0))])
def test_a_group_has_its_scores_in_a_row(values: Any) -> None:
    assert SIGNATURE.scored_group(2, values) == (Scored(0.0), Scored(1.0))


@pytest.mark.parametrize("values", [np.array(1.0), 1.0, "12", {0: 1.0, 1: 1.0}, [1.0], np.ones(3)])
def test_anything_else_is_no_row_of_scores(values: Any) -> None:
    with pytest.raises(JudgeError, match="for 2 episodes"):
        SIGNATURE.scored_group(2, values)


class Text(str):
    """Of the user's own file, which other processes may not have."""

    def __str__(self) -> str:
        return "not what it holds"


def test_texts_of_the_users_own_classes_become_texts() -> None:
    scored = SIGNATURE.scored(Scored(1.0, {Text("a"): 2.0}, Text("b")))
    assert scored == Scored(1.0, {"a": 2.0}, "b")
    assert {type(text) for text in (*scored.parts, scored.answer)} == {str}
