"""Spans: which work started and ended when, in which task, and whether it worked. docs/events.md has their schema.

A duration is measured with a clock that never jumps. Only the start is read from the wall clock. So an event never ends
before it starts, even if the machine's time is changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One finished piece of work. Times are Unix times in seconds."""

    name: str
    step: int
    start: float
    end: float
    who: str
    ok: bool
    error: str | None
    facts: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """The event as one object of events.jsonl."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@contextmanager
def timed(name: str, step: int, facts: Mapping[str, Any], write: Callable[[Event], None]) -> Iterator[None]:
    """Run the block, then `write` the event, also if the block raised."""
    who, start, mark = _who(), time.time(), time.monotonic()

    def finish(error: str | None) -> None:
        write(Event(name, step, start, start + time.monotonic() - mark, who, error is None, error, facts))

    try:
        yield
    except BaseException as error:
        finish(type(error).__name__)
        raise
    finish(None)


def _who() -> str:
    """The name of the running asyncio task, or of the thread if there is no task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task.get_name() if task else threading.current_thread().name
