"""Several trackers behind one tracker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from loopwright.ports import Tracker


class Trackers:
    """Forwards everything to each tracker, in the order given."""

    def __init__(self, *trackers: Tracker) -> None:
        self._trackers = trackers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, metrics)

    @contextmanager
    def span(self, name: str, *, step: int, **facts: Any) -> Iterator[None]:
        with ExitStack() as spans:
            for tracker in self._trackers:
                spans.enter_context(tracker.span(name, step=step, **facts))
            yield
