"""Work in flight: scheduled, waited for, claimed or cancelled.

Each piece of finished work is claimed exactly once. Claiming costs the same however much is in flight. The owner ends
with `cancel`, so no work outlives it, except work that does not react to cancellation: `cancel` returns its names.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from loopwright.core.together import GRACE_SECONDS

T = TypeVar("T")


class InFlight(Generic[T]):
    """`on_done` is called whenever a piece of work has returned, raised or was cancelled."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._running: set[asyncio.Task[T]] = set()
        self._finished: deque[asyncio.Task[T]] = deque()

    def __len__(self) -> int:
        """How many pieces of work have not ended."""
        return len(self._running)

    @property
    def unclaimed(self) -> int:
        """How many pieces of work have ended and were not claimed yet."""
        return len(self._finished)

    def schedule(self, work: Coroutine[Any, Any, T], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def claim(self) -> T | None:
        """What the next finished piece of work returned, or None when there is none; raises what it raised."""
        return self._finished.popleft().result() if self._finished else None

    async def cancel(self) -> list[str]:
        """Cancel all work, and wait until it has ended. Its results and exceptions are dropped.

        Work that does not end within GRACE_SECONDS is left behind; its names are returned.
        """
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=GRACE_SECONDS)
        for task in self._finished:
            _saw(task)
        self._finished.clear()
        return [self._leave(task) for task in tuple(self._running)]

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        self._finished.append(task)
        self._on_done()

    def _leave(self, task: asyncio.Task[T]) -> str:
        self._running.discard(task)
        task.remove_done_callback(self._ended)
        task.add_done_callback(_saw)
        return task.get_name()


def _saw(task: asyncio.Task[Any]) -> None:
    """Retrieve its exception, if there is one. Otherwise asyncio logs that it was never retrieved."""
    if not task.cancelled():
        task.exception()
