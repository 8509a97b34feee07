"""News for whoever waits: something has changed, look again."""

from __future__ import annotations

import asyncio


class Signal:
    """Take `news` before looking, and wait for it afterwards: then nothing that happens in between is missed."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """Set at the next `notify`."""
        return self._news

    def notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
