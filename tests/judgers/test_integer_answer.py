"""The built-in judger for whole numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.errors import JudgeError
from loopwright.judgers import IntegerAnswer
from loopwright.types import Episode, Scored, Task


async def score(answer: str, truth: Any) -> float:
    said = Episode(({"role": "assistant", "content": answer},), ())
    return (await IntegerAnswer().judge(Task.ask("t", "?", truth=truth), said)).value


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("19", 19, 1.0),
        ("The answer is 19.", 19, 1.0),
        ("12+7=19", 19, 1.0),
        ("first 3, then 19", 3, 0.0),
        ("-4", -4, 1.0),
        ("−4", -4, 1.0),
        ("-4", 4, 0.0),
        ("10-4", 4, 1.0),
        ("(2)-4", 4, 1.0),
        ("+7", 7, 1.0),
        ("It is 1,234 in all", 1234, 1.0),
        ("1,2,3", 3, 1.0),
        ("1,2345", 2345, 1.0),
        ("007", 7, 1.0),
        ("-0", 0, 1.0),
        ("1.5", 5, 0.0),
        ("12.0", 12, 1.0),
        ("12.0", 0, 0.0),
        (".5", 5, 0.0),
        ("-.5", 5, 0.0),
        ("It is...5", 5, 1.0),
        ("It is.5", 5, 1.0),
        ("4 - 2.5 = 1.5", 4, 0.0),
        ("1e3", 3, 0.0),
        ("1e3", 1000, 1.0),
        ("-1.5e3", -1500, 1.0),
        (".5E+1", 5, 1.0),
        ("15e-1", 15, 0.0),
        ("150e-1", 15, 1.0),
        ("5e-9", 0, 0.0),
        ("0.0", 0, 1.0),
        ("1e99999999999", 1, 0.0),
        ("3 elves", 3, 1.0),
        ("**42km**", 42, 1.0),
        ("no number", 0, 0.0),
        ("", 0, 0.0),
        ("9" * 5000, 9, 0.0),
        ("19", "19", 1.0),
        ("1234", " 1,234 ", 1.0),
        ("19", 19.0, 1.0),
    ],
)
async def test_known_answers(answer: str, truth: Any, expected: float) -> None:
    assert await score(answer, truth) == expected


@given(st.integers(), st.text(alphabet="abc .!?\n"), st.text(alphabet="abc !?\n"))
async def test_an_integer_is_found_in_any_text_without_digits(number: int, before: str, after: str) -> None:
    assert await score(f"{before} {number:,} {after}", number) == 1.0
    assert await score(f"{before} {number} {after}", number + 1) == 0.0


@pytest.mark.parametrize("truth", [None, "seven", 1.5, True, [3], "3.5", float("nan")])
async def test_a_truth_that_is_no_integer_is_an_error(truth: Any) -> None:
    with pytest.raises(JudgeError, match="no integer"):
        await score("3", truth)


async def test_the_last_assistant_message_counts() -> None:
    messages = [("assistant", "5"), ("user", "sure? 6"), ("assistant", "7"), ("user", "8")]
    said = Episode(tuple({"role": role, "content": text} for role, text in messages), ())
    assert await IntegerAnswer().judge(Task.ask("t", "?", truth=7), said) == Scored(1.0, answer="7")
