"""One connection of a worker, as the gateway uses it: many requests at a time, each with an answer that streams.

The invariants: an answer that breaks off raises EngineLostError, and never ends as if it were whole. A request that
nobody waits for any more is cancelled at the worker. No answer holds more than `WINDOW_BYTES` here: a worker that sends
more than its credit breaks the protocol, and only its own connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count

from loopwright.errors import EngineLostError
from loopwright.gateway.relay.frames import (
    WINDOW_BYTES,
    FrameType,
    RelayFrame,
    frame_of_number,
    frame_of_words,
    parts_of,
    protocol_broken,
)
from loopwright.ports import Waiting

STATUSES = range(100, 600)


class RelayedAnswer:
    """A `ServerAnswer` that arrives in frames. `request` is its number on the connection."""

    def __init__(self, link: Link, request: int, patience: Waiting) -> None:
        self.request = request
        self.status = 0
        self._link = link
        self._patience = patience
        self._pieces: list[bytes] = []
        self._held = 0
        self._ended = False
        self._lost: str | None = None
        self._waiting: asyncio.Future[bool] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the worker has nothing more to say."""
        return self._ended or self._lost is not None

    async def begun(self) -> None:
        while not self.status:
            if self._ended:
                raise _lost(self._link.worker, "it ended a request without an answer")
            await self._wait()

    async def read(self) -> bytes:
        pieces = []
        while piece := await self.more():
            pieces.append(piece)
        return b"".join(pieces)

    async def more(self) -> bytes:
        while not self._pieces and not self._ended:
            await self._wait()
        taken, self._pieces = b"".join(self._pieces), []
        if taken and not self._ended:
            self._link.put(frame_of_number(FrameType.CREDIT, len(taken), self.request))
        self._held = 0
        return taken

    def hear(self, frame: RelayFrame) -> None:
        if self._ended:
            raise protocol_broken(f"{frame.type.name} comes after the end of its answer")
        match frame.type:
            case FrameType.STATUS if not self.status and frame.number in STATUSES:
                self.status = frame.number
            case FrameType.PART if self.status and self._held + len(frame.payload) <= WINDOW_BYTES:
                self._held += len(frame.payload)
                # An empty part would look like the end of the body.
                self._pieces += [frame.payload] if frame.payload else []
            case FrameType.END:
                self._ended = True
            case _:
                raise protocol_broken(f"{frame.type.name} does not fit what its answer has so far")
        self._wake()

    def lose(self, why: str) -> None:
        self._lost = why
        self._wake()

    async def _wait(self) -> None:
        if self._lost is not None:
            raise _lost(self._link.worker, self._lost)
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        enough = loop.call_later(self._patience.seconds, self._wake, False)
        try:
            heard = await self._waiting
        finally:
            enough.cancel()
            self._waiting = None
        if not heard:
            await self._patience.after()

    def _wake(self, heard: bool = True) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(heard)


class Link:
    """The requests on one connection of `worker`. Whoever owns the connection sends what `outgoing` gives, and passes
    to `hear` what arrives."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.why = ""
        self.closed = asyncio.Event()
        self.outgoing: asyncio.Queue[RelayFrame] = asyncio.Queue()
        self._numbers = count(1)
        self._asked: dict[int, RelayedAnswer] = {}

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, patience: Waiting
    ) -> AsyncIterator[RelayedAnswer]:
        if self.closed.is_set():
            raise _lost(self.worker, self.why)
        answer = RelayedAnswer(self, next(self._numbers), patience)
        self._asked[answer.request] = answer
        try:
            head = {"method": method, "path": path, "headers": dict(headers)}
            self.put(frame_of_words(FrameType.ASK, head, answer.request))
            for part in parts_of(body, answer.request):
                self.put(part)
            self.put(RelayFrame(FrameType.END, answer.request))
            await answer.begun()
            yield answer
        finally:
            del self._asked[answer.request]
            if not answer.is_over:
                self.put(RelayFrame(FrameType.CANCEL, answer.request))

    def put(self, frame: RelayFrame) -> None:
        if not self.closed.is_set():
            self.outgoing.put_nowait(frame)

    def hear(self, frame: RelayFrame) -> None:
        """Take what the worker has sent. Raises RefusedError if that breaks the protocol."""
        if frame.type not in (FrameType.STATUS, FrameType.PART, FrameType.END):
            raise protocol_broken(f"a worker does not send {frame.type.name} now")
        # One that was cancelled a moment ago is not there any more.
        if (answer := self._asked.get(frame.request)) is not None:
            answer.hear(frame)

    def lose(self, why: str) -> None:
        """The connection is of no use any more, and all answers that it carried are lost. The first reason counts."""
        if not self.closed.is_set():
            self.closed.set()
            self.why = why
            for answer in self._asked.values():
                answer.lose(why)


def _lost(worker: str, why: str) -> EngineLostError:
    return EngineLostError(
        f"the answer of worker {worker} broke off: {why}", remedy="nothing to do: it goes on from the tokens that came"
    )
