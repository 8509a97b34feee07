"""The built-in judger for problems whose answer is a whole number."""

from __future__ import annotations

import re
from typing import Any

from loopwright.errors import JudgeError
from loopwright.judgers.one_by_one import MemberJudger
from loopwright.types import Episode, Scored, Task

# A minus after a word or a bracket is a subtraction, not a sign. A number is matched as a whole, so that the digits of
# its fraction or its exponent are not read as an integer. A point after a word or another point ends a sentence.
NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-−+])?"
    r"(?:(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?P<fraction>\.[0-9]+)?|(?P<bare_fraction>(?<![\w.])\.[0-9]+))"
    r"(?P<exponent>[eE][-+]?[0-9]+)?"
)

MAX_EXPONENT = 4
"""The largest number of digits of an exponent. A number with more than 10,000 digits is not meant as an integer."""


class IntegerAnswer(MemberJudger):
    """1.0 if the last number of the answer is the integer `task.truth`, otherwise 0.0."""

    def __init__(self, name: str = "integer_answer") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def judge(self, task: Task, episode: Episode) -> Scored:
        truth = _whole(task.truth)
        if truth is None:
            raise JudgeError(
                f"judger {self._name!r}: the truth of task {task.id!r} is {task.truth!r}, which is no integer",
                remedy="give the task an integer as its truth, or use another judger",
                judger=self._name,
                error="WrongTruth",
            )
        answer = _last_integer(episode.answer)
        return Scored(1.0 if answer == truth else 0.0, answer=answer)


def _last_integer(text: str) -> str | None:
    """The last number in a text, in a canonical form, if it is an integer."""
    numbers = list(NUMBER.finditer(text))
    return _canonical(numbers[-1]) if numbers else None


def _canonical(number: re.Match[str]) -> str | None:
    """The integer in a canonical form: 12.0 and 1.2e1 are 12; 1.5 is none. It works on the text, because a model can
    write more digits than Python reads."""
    whole = (number["digits"] or "").replace(",", "")
    exponent = (number["exponent"] or "e0")[1:]
    if len(exponent.lstrip("+-")) > MAX_EXPONENT:
        return None
    digits = whole + (number["fraction"] or number["bare_fraction"] or "")[1:]
    point = max(0, len(whole) + int(exponent))
    if digits[point:].strip("0"):
        return None
    integer = digits[:point].ljust(point, "0").lstrip("0") or "0"
    negative = number["sign"] in ("-", "−") and integer != "0"
    return f"-{integer}" if negative else integer


def _whole(truth: Any) -> str | None:
    if isinstance(truth, str):
        number = NUMBER.fullmatch(truth.strip())
        return _canonical(number) if number else None
    if isinstance(truth, float) and truth.is_integer():
        return str(int(truth))
    return str(truth) if isinstance(truth, int) and not isinstance(truth, bool) else None
