"""What single engines did, for the timeline: when each answered calls, when it loaded weights, when one came back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_GAP_SECONDS = 0.25
"""Calls with shorter pauses between them are one span."""
LONGEST_SECONDS = 60.0
"""A longer span is told in parts, so that a run that is killed has told most of it."""


@dataclass(frozen=True, slots=True)
class EngineSpan:
    """A piece of work of one engine. `start` is Unix time. `error` is the type of the exception that ended it."""

    name: str
    engine: str
    start: float
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


TellSpan = Callable[[EngineSpan], object]


def nobody(span: EngineSpan) -> None:
    """For those who do not listen."""


class AnsweringSpans:
    """The times in which one engine answered calls."""

    def __init__(self, engine: str, tell: TellSpan) -> None:
        self._engine = engine
        self._tell = tell
        self._start: float | None = None
        self._rested: float | None = None
        self._calls = 0

    def began(self) -> None:
        """A call was given to the engine, which had none."""
        now = time.time()
        if self._start is not None and self._rested is not None and self._is_over(now):
            self.flush()
        if self._start is None:
            self._start = now
        self._rested = None

    def called(self) -> None:
        self._calls += 1

    def rested(self) -> None:
        """Its last call has ended."""
        self._rested = time.time()

    def _is_over(self, now: float) -> bool:
        start, rested = self._start or now, self._rested or now
        return now - rested > LONGEST_GAP_SECONDS or rested - start > LONGEST_SECONDS

    def flush(self) -> None:
        """Tell what was not told. If calls run, the next span begins now."""
        if self._start is None:
            return
        now = time.time()
        end = now if self._rested is None else self._rested
        self._tell(
            EngineSpan("generate", self._engine, self._start, max(0.0, end - self._start), {"calls": self._calls})
        )
        self._start = now if self._rested is None else None
        self._rested, self._calls = None, 0
