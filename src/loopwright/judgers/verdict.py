"""What a user's judger did, made unmistakable: a finite score, or a JudgeError that names the judger (R2).

Nothing is read into a wrong answer. A string, None or NaN is an error, not the number 0.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutine
from numbers import Real
from typing import Any

import numpy as np

from loopwright.core.blame import blame
from loopwright.errors import JudgeError
from loopwright.types import Scored

DRY_RUN = "`loopwright check --deep` calls your judger once and shows what it does"


@dataclass(frozen=True, slots=True)
class Signature:
    """How a judger is called in the config, and where its function lives."""

    name: str
    path: str

    def scored(self, value: Any) -> Scored:
        """The function's return value as a score. A bool counts as 0 or 1."""
        number, parts, answer = (
            (value.value, value.parts, value.answer) if isinstance(value, Scored) else (value, {}, None)
        )
        if not all(_is_finite(part) for part in (number, *parts.values())):
            raise self.error(
                f"returned {_shown(value)} of type {type(value).__name__}; it must return a finite number or Scored",
                remedy=_hint(value),
                error="WrongReturn",
            )
        answer = value.answer if isinstance(value, Scored) else None
        return Scored(float(number), {name: float(part) for name, part in parts.items()}, answer)

    def raised(self, error: BaseException, function: Callable[..., Any]) -> JudgeError:
        """The user's own exception, with the line of their file that raised it; its traceback is among the facts.

        To be called by the frame that called `function`: the traceback starts below it.
        """
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
            remedy="look for os._exit, a crash in native code, or too little memory",
            error="WorkerDied",
        )

    def error(self, what: str, *, remedy: str, error: str, **facts: str) -> JudgeError:
        """`error` names the kind of failure; failures are counted by it."""
        return JudgeError(
            f"judger {self.name!r} ({self.path}) {what}",
            remedy=remedy,
            judger=self.name,
            path=self.path,
            error=error,
            **facts,
        )


def _is_finite(number: object) -> bool:
    return isinstance(number, Real | np.bool_) and math.isfinite(number)


def _hint(value: object) -> str:
    if iscoroutine(value):
        value.close()  # nobody will await it, and Python would warn of that
        return "make the judger an `async def`, and await what it calls"
    return "call `.item()` on a tensor" if hasattr(value, "item") else f"return a float; {DRY_RUN}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
