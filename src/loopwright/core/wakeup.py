"""Waking those who wait for shared state to change, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WakeUp:
    """Whoever changes the state calls `notify`; whoever waits for it looks again.

    To wait for one of several things, take `news` before you look at the state, and wait for it afterwards: a change in
    between is not missed.
    """

    def __init__(self) -> None:
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """It is set by the next `notify`, and stays set. Each `notify` begins a new one."""
        return self._news

    def notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true. It is looked at now, and after each `notify`."""
        while not condition():
            await self._news.wait()
