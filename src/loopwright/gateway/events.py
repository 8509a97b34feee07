"""Server-sent events on their way to a client.

An answer's opening is held back until something follows it, so that a failure before the first token is answered with a
status that clients know how to retry. A client is never left in silence for so long that it would ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from loopwright.gateway.call import Call
from loopwright.gateway.dialects import Dialect, Head, Stream
from loopwright.types import Delta

FIRST_BEAT_SECONDS = 90.0
"""How long nothing at all is sent: so long, a failure can have a status. Clients ask again after 120 s of silence."""
BEAT_SECONDS = 10.0
"""How long nothing is sent once something was."""
BEAT = b": still at work\n\n"
"""A comment: no client hears it, and no proxy takes the connection for dead."""


class Events:
    """A `Listener` that turns what it hears into bytes for whoever iterates over `chunks`."""

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
        """Nothing more will come."""
        self._closed = True
        self._news.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """What there is to send, as it comes. What is left at the end is for `rest`."""
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
        """What was not sent yet."""
        pending, self._pending = self._pending, []
        self.begun = self.begun or bool(pending)
        return b"".join(pending)
