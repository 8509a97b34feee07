"""Tells listeners of changes of state. A listener that does not read is dropped, so the server never waits for one."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loopwright.agents.trials.wire import TrialStatus
from loopwright.errors import RefusedError

LONGEST_BACKLOG = 1000
MOST_LISTENERS = 256


class EventListener:
    """Hears of one trial, or of all. `None` in `news` is the end."""

    def __init__(self, trial: str | None) -> None:
        self.trial = trial
        self.news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()


class Announcements:
    """Everybody who listens."""

    def __init__(self) -> None:
        self._listeners: set[EventListener] = set()
        self._numbers = itertools.count(1)

    @contextmanager
    def listening(self, trial: str | None) -> Iterator[EventListener]:
        if len(self._listeners) >= MOST_LISTENERS:
            raise RefusedError("too many clients listen for events", remedy="end some of them", status=429)
        listener = EventListener(trial)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def tell(self, status: TrialStatus) -> None:
        news = self.event(status)
        for listener in [*self._listeners]:
            if listener.trial not in (None, status.id):
                continue
            listener.news.put_nowait(news)
            if (listener.trial is not None and status.state.is_over) or listener.news.qsize() > LONGEST_BACKLOG:
                listener.news.put_nowait(None)
                self._listeners.discard(listener)

    def event(self, status: TrialStatus) -> dict[str, Any]:
        return {
            "number": next(self._numbers),
            "time": time.time(),
            "id": status.id,
            "state": status.state.value,
            "stage": status.stage.value,
            "label": status.label,
        }

    def close(self) -> None:
        for listener in self._listeners:
            listener.news.put_nowait(None)
