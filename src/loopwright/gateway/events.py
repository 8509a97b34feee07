"""Server-sent events on their way to a client.

The opening of an answer is held back until something follows it, so that a failure before the first token gets a status
that clients retry. A client never gets nothing for so long that it would ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from loopwright.gateway.call import Call
from loopwright.gateway.dialects import Dialect, Head, Stream
from loopwright.types import Delta

FIRST_BEAT_SECONDS = 90.0
"""How long nothing at all is sent, so that a failure can still have a status. Clients ask again after 120 s of
silence."""
BEAT_SECONDS = 10.0
"""The longest silence after the first bytes."""
BEAT = b": still at work\n\n"
"""A comment. Clients ignore it, and proxies see that the connection is alive."""


class Events:
    """A `Listener` that turns an answer into bytes, which `chunks` yields."""

    def __init__(self, dialect: Dialect, call: Call) -> None:
        self._dialect = dialect
        self._call = call
        self._pending: list[bytes] = []
        self._news = asyncio.Event()
        self._closed = False
        self.stream: Stream | None = None
        self.begun = False

    def head(self, head: Head) -> None:
        self.stream = self._dialect.stream(self._call, head)
        self._pending.append(self.stream.start())

    def delta(self, sample: int, delta: Delta) -> None:
        if self.stream is not None and (said := self.stream.delta(sample, delta)):
            self._pending.append(said)
            self._news.set()

    def close(self) -> None:
        """Mark the end: nothing more will come."""
        self._closed = True
        self._news.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes to send, as they come. What is left at the end is returned by `rest`."""
        silence = FIRST_BEAT_SECONDS
        while True:
            try:
                async with asyncio.timeout(silence):
                    await self._news.wait()
            except TimeoutError:
                silence = BEAT_SECONDS
                yield self.rest() or BEAT
                continue
            if self._closed:
                return
            silence = BEAT_SECONDS
            self._news.clear()
            yield self.rest()

    def rest(self) -> bytes:
        """The bytes that were not sent yet."""
        pending, self._pending = self._pending, []
        self.begun = self.begun or bool(pending)
        return b"".join(pending)
