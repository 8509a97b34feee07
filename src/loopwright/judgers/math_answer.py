"""The built-in judger for mathematical answers. It uses the library math-verify.

It runs in worker processes like a user's function. The library's own time-outs are off, because they need signals and
mean "not equal". The worker's deadline replaces them; after it there is no score (R2).
"""

from __future__ import annotations

import logging
import math
import re
from functools import lru_cache
from typing import Any

import math_verify
import sympy

from loopwright.errors import JudgeError
from loopwright.types import Episode, Scored, Task

# The library warns at every call that its time-outs are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[")
"""The marks with which mathematics begins in LaTeX."""

WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
"""A word. Mathematics has names of one letter, commands, and text in braces, but no words."""

SURELY_READABLE = r"\boxed{\frac{1}{2}}"
"""If the library cannot read this, it is broken."""

MAX_SPELLING = 500
"""The largest number of characters of a canonical answer. Python refuses to write numbers with more than 4300 digits,
and nobody reads shorter ones of that size."""


def judge(task: Task, episode: Episode) -> Scored:
    """1.0 if the answer (the last \\boxed{}, or the last expression) equals `task.truth`, otherwise 0.0."""
    truth = _truth(task.truth)
    if not truth:
        raise JudgeError(
            f"the truth of task {task.id!r} is {task.truth!r}, which is no mathematical expression",
            remedy="give the task a number or a LaTeX expression as its truth, or use another judger",
            error="WrongTruth",
        )
    answer = _answer(episode.answer[max(0, episode.answer.rfind(r"\boxed")) :])
    if not answer:
        return Scored(0.0, evidence=f"no answer was found; the truth is {task.truth}")
    equal = math_verify.verify(truth, answer, timeout_seconds=None, raise_on_error=True)
    canonical = _canonical(answer[0])
    read = f"the answer was read as {canonical or 'an expression that cannot be written'}"
    return Scored(1.0 if equal else 0.0, answer=canonical, evidence=f"{read}; the truth is {task.truth}")


def _truth(value: Any) -> list[Any]:
    """The truth as read by the library: a number, or LaTeX with or without its marks. Empty for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [sympy.sympify(value)] if math.isfinite(value) else []
    if not isinstance(value, str) or (WORD.search(value) and not MARKED.search(value)):
        return []
    text = value if MARKED.search(value) else f"\\boxed{{{value}}}"
    return _expressions(_parsed(text))


def _answer(text: str) -> list[Any]:
    """What the library reads in an answer. Empty if it cannot read the answer although the library works: then the
    answer is wrong."""
    try:
        answer = _parsed(text)
    except MemoryError:
        raise
    except Exception:
        answer = []
    if not _expressions(answer):
        _see_that_it_reads()
    return answer


@lru_cache
def _see_that_it_reads() -> None:
    if not _expressions(_parsed(SURELY_READABLE)):
        raise JudgeError(
            "math-verify reads no LaTeX",
            remedy="pip install --force-reinstall 'loopwright[math]'",
            error="BrokenLibrary",
        )


def _expressions(parsed: list[Any]) -> list[Any]:
    return [one for one in parsed if isinstance(one, sympy.Basic | sympy.MatrixBase)]


def _parsed(text: str) -> list[Any]:
    """What the library reads in a text: the expression, and the text of it. Empty if there is no expression."""
    return list(math_verify.parse(text, parsing_timeout=None, raise_on_error=True))


def _canonical(expression: Any) -> str | None:
    """One text for equal numbers: 0.5 and 1/2 are the same answer. None if the text would be too long or cannot be
    written; then the score has no answer."""
    try:
        number = isinstance(expression, sympy.Expr) and expression.is_number
        text = str(sympy.nsimplify(expression.doit(), rational=True) if number else expression)
    except Exception:
        return None
    return text if len(text) <= MAX_SPELLING else None
