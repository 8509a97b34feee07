"""The built-in judger for mathematical answers, on the library math-verify.

It runs in worker processes as a user's function does. The library's own time-outs are off, because they need signals
and turn into "not equal"; the worker's deadline takes their place, and past it there is no score (R2).
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

# It warns at every call that its time-outs are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[")
"""Where LaTeX says that mathematics begins."""

WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
"""Mathematics has names of one letter, commands, and text in braces. A word is prose."""

SURELY_READABLE = r"\boxed{\frac{1}{2}}"
"""What only a broken library cannot read."""

MAX_SPELLING = 500
"""Characters. Python refuses to spell numbers of more than 4300 digits, and nobody reads those of fewer."""


def judge(task: Task, episode: Episode) -> Scored:
    """1.0 when the answer (in the last \\boxed{}, or else its last expression) equals `task.truth`, else 0.0."""
    truth = _truth(task.truth)
    if not truth:
        raise JudgeError(
            f"the truth of task {task.id!r} is {task.truth!r}, which is no mathematical expression",
            remedy="give the task a number or a LaTeX expression as its truth, or use another judger",
            error="WrongTruth",
        )
    answer = _answer(episode.answer[max(0, episode.answer.rfind(r"\boxed")) :])
    if not answer:
        return Scored(0.0)
    equal = math_verify.verify(truth, answer, timeout_seconds=None, raise_on_error=True)
    return Scored(1.0 if equal else 0.0, answer=_canonical(answer[0]))


def _truth(value: Any) -> list[Any]:
    """A number, or LaTeX with or without its marks; empty for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [sympy.sympify(value)] if math.isfinite(value) else []
    if not isinstance(value, str) or (WORD.search(value) and not MARKED.search(value)):
        return []
    text = value if MARKED.search(value) else f"\\boxed{{{value}}}"
    return _expressions(_parsed(text))


def _answer(text: str) -> list[Any]:
    """What the library reads in an answer. Empty when it cannot read it, though it can read: that is a wrong answer."""
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
    """What the library reads in a text: the expression, and the words it was read from. Empty when there is none."""
    return list(math_verify.parse(text, parsing_timeout=None, raise_on_error=True))


def _canonical(expression: Any) -> str | None:
    """One spelling for equal numbers: 0.5 and 1/2 are the same answer. None when it would be too long, or cannot be
    spelled: the score stands without it."""
    try:
        number = isinstance(expression, sympy.Expr) and expression.is_number
        text = str(sympy.nsimplify(expression.doit(), rational=True) if number else expression)
    except Exception:
        return None
    return text if len(text) <= MAX_SPELLING else None
