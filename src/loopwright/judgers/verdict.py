"""Turns what a judger returned into a finite score, or into a JudgeError that names the judger (R2).

A wrong return value is not interpreted. A string, None or NaN is an error, not the number 0.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutine
from numbers import Real
from typing import Any

import numpy as np

from loopwright.core.blame import blame
from loopwright.errors import JudgeError
from loopwright.types import Scored
from loopwright.workers import WHY_WORKERS_DIE

DRY_RUN = "`loopwright check --deep` calls your judger once and shows what it does"


@dataclass(frozen=True, slots=True)
class Signature:
    """The name of a judger in the config, and its place: the function's path, or the URL."""

    name: str
    path: str

    def scored(self, value: Any) -> Scored:
        """The function's return value as a score. A bool counts as 0 or 1."""
        number, parts = (value.value, value.parts) if isinstance(value, Scored) else (value, {})
        texts = (value.answer, value.evidence) if isinstance(value, Scored) else (None, None)
        if isinstance(value, Scored) and (wrong := _misfit(value)) is not None:
            raise self.error(
                f"returned Scored with {wrong}",
                remedy="let `parts` be a dict from texts to numbers, and `answer` and `evidence` texts or None",
                error="WrongReturn",
            )
        if not all(_is_finite(part) for part in (number, *parts.values())):
            raise self.error(
                f"returned {short_repr(value)} of type {type(value).__name__}; "
                "it must return a finite number or Scored",
                remedy=_hint(value),
                error="WrongReturn",
            )
        # As texts of Python's own: other processes may lack the class of one of the user's.
        own = {str.__str__(name): float(part) for name, part in parts.items()}
        return Scored(float(number), own, *(None if text is None else str.__str__(text) for text in texts))

    def scored_group(self, count: int, values: Any) -> tuple[Scored, ...]:
        """The return value of a function that judges `count` episodes together: one score for each, in order."""
        if not _is_row(values) or len(values) != count:
            raise self.error(
                f"returned {short_repr(values)} of type {type(values).__name__} for {count} episodes",
                remedy=f"return a list of {count} numbers, in the order of the episodes",
                error="WrongReturn",
            )
        return tuple(self.scored(value) for value in values)

    def raised(self, error: BaseException, function: Callable[..., Any]) -> JudgeError:
        """The error for an exception of the user's code, with the line of their file. Its traceback is one of the
        facts.

        The frame that called `function` must call this, because the traceback starts below that frame. If the user
        raises a JudgeError, the judger itself says that there is no score, so the line is not added.
        """
        if isinstance(error, JudgeError):
            return self.error(f"gives no score: {error.message}", remedy=error.remedy, error=_kind(error))
        below = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(type(error), error, below)).rstrip()
        return self.error(f"raised {blame(error, function)}", remedy=DRY_RUN, error=type(error).__name__, trace=trace)

    def late(self, seconds: float) -> JudgeError:
        return self.error(
            f"gave no score within {seconds:g} s, and was stopped",
            remedy="make it faster, or raise its `timeout_seconds`",
            error="Timeout",
        )

    def died(self, how: BaseException) -> JudgeError:
        return self.error(
            f"took its worker process down ({type(how).__name__}: {how})",
            remedy=WHY_WORKERS_DIE,
            error="WorkerDied",
        )

    def error(self, what: str, *, remedy: str, error: str, **facts: Any) -> JudgeError:
        """`error` is the kind of failure. Failures are counted by it."""
        return JudgeError(
            f"judger {self.name!r} ({self.path}) {what}",
            remedy=remedy,
            judger=self.name,
            path=self.path,
            error=error,
            **facts,
        )


def _kind(error: JudgeError) -> str:
    return str(error.facts.get("error", "JudgeError"))


def finite(value: object) -> float | None:
    """A JSON number as a float. None for anything else, also for a number that is too large for a float."""
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value) else None
    )


def _is_finite(number: object) -> bool:
    if type(number) is float:
        return math.isfinite(number)
    try:
        return isinstance(number, Real | np.bool_) and math.isfinite(number)
    except OverflowError:
        return False


def _is_row(values: object) -> bool:
    """Whether it is a sequence of values. A text is one value, and so is an array without dimensions."""
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return isinstance(values, Sequence) and not isinstance(values, str)


def _misfit(scored: Scored) -> str | None:
    """The part of the score whose type cannot be stored, or None. This does not check whether its numbers are
    finite."""
    parts: Any = scored.parts
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) for name in parts):
        return f"the parts {short_repr(parts)}"
    texts: Any = (("answer", scored.answer), ("evidence", scored.evidence))
    for what, text in texts:
        if not isinstance(text, str | None):
            return f"the {what} {short_repr(text)} of type {type(text).__name__}"
    return None


def _hint(value: object) -> str:
    if iscoroutine(value):
        value.close()  # nobody will await it, and Python would warn about that
        return "make the judger an `async def`, and await what it calls"
    return "call `.item()` on a tensor" if hasattr(value, "item") else f"return a float; {DRY_RUN}"


def short_repr(value: object) -> str:
    """The value as Python writes it, in at most 80 characters."""
    try:
        # Cut it before `repr`, because the value may be huge.
        text = repr(value[:100] if isinstance(value, str | bytes) else value)
    except Exception:  # a number of thousands of digits, or an object whose own code fails
        return "a value that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."
