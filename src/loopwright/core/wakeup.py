"""Wakes tasks that wait for shared state to change, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WakeUp:
    """Code that changes the state calls `notify`; then waiting tasks check the state again.

    To wait for one of several things, take `news` before you check the state, and wait for it afterwards. So a change
    in between is not missed.
    """

    def __init__(self) -> None:
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """An event that the next `notify` sets; it stays set. After each `notify` there is a new event."""
        return self._news

    def notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true. It is checked now, and after each `notify`."""
        while not condition():
            await self._news.wait()
