"""Spans: what started and ended when, by whom, and whether it worked. docs/events.md is their schema.

A duration comes from a clock that never jumps; only the start is taken from the wall clock. So an event never ends
before it starts, whatever happens to the machine's time.
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
    """Run the block, then `write` what happened, also when it raised."""
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
    """The asyncio task that runs here, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task.get_name() if task else threading.current_thread().name
