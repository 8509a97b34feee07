"""Work in flight: scheduled, waited for, claimed or cancelled.

Each piece of finished work is claimed by exactly one party, at a cost that does not depend on how much is in flight.
Nothing outlives its owner, who ends with `cancel`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """`on_done` is called whenever a piece of work has ended, however that was."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._running: set[asyncio.Task[T]] = set()
        self._finished: deque[asyncio.Task[T]] = deque()

    def __len__(self) -> int:
        """Pieces of work that are not through."""
        return len(self._running)

    @property
    def unclaimed(self) -> int:
        """Pieces of work that are through, and that nobody has claimed yet."""
        return len(self._finished)

    def schedule(self, work: Coroutine[Any, Any, T]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def claim(self) -> T | None:
        """What the next finished piece of work returned, or None when there is none; raises what it raised."""
        return self._finished.popleft().result() if self._finished else None

    async def cancel(self) -> None:
        """End all of it, and wait until it has ended. What it returns or raises now interests nobody."""
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for task in self._finished:
            if not task.cancelled():
                task.exception()  # seen: asyncio would complain of an error that nobody looked at
        self._finished.clear()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        self._finished.append(task)
        self._on_done()
