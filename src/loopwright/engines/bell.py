"""Waiting for a condition over shared state, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Whoever changes the state rings; whoever waits looks again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ring(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._next.wait()
