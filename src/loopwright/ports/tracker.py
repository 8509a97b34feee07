"""Where numbers and events go while a run is under way."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Tracker(Protocol):
    """Receives metrics of each step, and spans that say what started and ended when."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of one train step, under names like `reward/mean`."""
        ...

    def span(self, name: str, *, step: int, **facts: Any) -> AbstractContextManager[None]:
        """Time a piece of work. The span is written when the work ends, also if it raises."""
        ...
