"""What a run is doing now: the pieces of work that have begun and not ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One piece of work. `since` is Unix time."""

    name: str
    step: int
    since: float
    facts: Mapping[str, Any]


class Phases:
    """A `Tracker` that knows the present work, the outermost first."""

    def __init__(self) -> None:
        self._now: list[Phase] = []

    @property
    def now(self) -> tuple[Phase, ...]:
        return tuple(self._now)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics are not kept: `metrics.jsonl` has them."""

    @contextmanager
    def span(self, name: str, *, step: int, **facts: Any) -> Iterator[None]:
        phase = Phase(name, step, time.time(), facts)
        self._now.append(phase)
        try:
            yield
        finally:
            self._now.remove(phase)
