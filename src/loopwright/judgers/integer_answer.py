"""The built-in judger for problems whose answer is a whole number."""

from __future__ import annotations

import re
from typing import Any

from loopwright.errors import JudgeError
from loopwright.types import Episode, Scored, Task

# A minus after a word or a bracket is a subtraction, not a sign. A number with a fraction is matched whole, so that the
# digits behind its point are not taken for an integer.
NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-−+])?(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?P<fraction>\.[0-9]+)?"
)


class IntegerAnswer:
    """1.0 when the last integer of the answer is `task.truth`, else 0.0."""

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
        answer = last_integer(episode.answer)
        return Scored(1.0 if answer == truth else 0.0, answer=answer)


def last_integer(text: str) -> str | None:
    """The last integer in a text, in canonical spelling; 12.0 is one, 1.5 is not."""
    found = [number for number in NUMBER.finditer(text) if not (number["fraction"] or "").strip(".0")]
    return _canonical(found[-1]) if found else None


def _canonical(number: re.Match[str]) -> str:
    # Compared as text: a model can write more digits than Python is willing to read.
    digits = number["digits"].replace(",", "").lstrip("0") or "0"
    negative = number["sign"] in ("-", "−") and digits != "0"
    return f"-{digits}" if negative else digits


def _whole(truth: Any) -> str | None:
    if isinstance(truth, str):
        number = NUMBER.fullmatch(truth.strip())
        return _canonical(number) if number and not (number["fraction"] or "").strip(".0") else None
    if isinstance(truth, float) and truth.is_integer():
        return str(int(truth))
    return str(truth) if isinstance(truth, int) and not isinstance(truth, bool) else None
