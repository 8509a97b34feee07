"""Waiting for a change of shared state, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WakeUp:
    """Whoever changes the state notifies; whoever waits looks again.

    Take `news` before looking at the state, and wait for it afterwards: then no change in between is missed.
    """

    def __init__(self) -> None:
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """Set at the next `notify`."""
        return self._news

    def notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news.wait()
