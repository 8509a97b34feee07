"""The worker's side of one connection: it answers the gateway's requests with an ASGI app in this process.

The invariants: the app needs no port, and nobody but the gateway that was dialled reaches it. A request that is
cancelled, or whose connection breaks off, is told to the app as a client that went away, so it frees what it held. No
answer sends more than the gateway has given credit for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from loopwright.gateway.relay.frames import (
    WINDOW_BYTES,
    FrameType,
    RelayFrame,
    frame_of_number,
    parts_of,
    protocol_broken,
)
from loopwright.serve.guard import MAX_BODY_BYTES, App, Message, Scope

log = logging.getLogger("loopwright")

FROM_GATEWAY = frozenset({FrameType.PART, FrameType.END, FrameType.CANCEL, FrameType.CREDIT})

SendFrame = Callable[[RelayFrame], Awaitable[None]]


class RelayedRequest:
    """One request, as an ASGI app sees it. It `is_whole` when its body has arrived."""

    def __init__(self, request: int, head: Mapping[str, Any], send: SendFrame) -> None:
        self.request = request
        self._head = head
        self._send_frame = send
        self._body: list[bytes] = []
        self._size = 0
        self._was_read = False
        self.is_whole = False
        self._credit = WINDOW_BYTES
        self._may_send = asyncio.Event()
        self._gone = asyncio.Event()

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_BODY_BYTES:
            raise protocol_broken(f"the body of request {self.request} is longer than {MAX_BODY_BYTES:,} bytes")
        self._body.append(part)

    def credit(self, count: int) -> None:
        self._credit += count
        self._may_send.set()

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        self._gone.set()
        self._may_send.set()

    async def answered_by(self, app: App) -> None:
        try:
            await app(self._scope(), self._receive, self._send)
        finally:
            if not self._gone.is_set():
                # If the app has failed, the answer ends here, and the gateway sees that it is not whole.
                await self._send_frame(RelayFrame(FrameType.END, self.request))

    def _scope(self) -> Scope:
        path, _, query = str(self._head.get("path", "/")).partition("?")
        headers = self._head.get("headers")
        listed = headers.items() if isinstance(headers, dict) else ()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": str(self._head.get("method", "GET")),
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(str(name).lower().encode(), str(value).encode()) for name, value in listed],
        }

    async def _receive(self) -> Message:
        if not self._was_read:
            self._was_read = True
            body, self._body = b"".join(self._body), []
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._tell(frame_of_number(FrameType.STATUS, message["status"], self.request))
            return
        for part in parts_of(message.get("body", b""), self.request):
            while self._credit < len(part.payload) and not self._gone.is_set():
                self._may_send.clear()
                await self._may_send.wait()
            self._credit -= len(part.payload)
            await self._tell(part)

    async def _tell(self, frame: RelayFrame) -> None:
        if not self._gone.is_set():
            await self._send_frame(frame)


class Answering:
    """All requests of one connection. Leaving the context ends them."""

    def __init__(self, app: App, send: SendFrame) -> None:
        self._app = app
        self._send = send
        self._asked: dict[int, RelayedRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, frame: RelayFrame) -> None:
        """Take what the gateway has sent. Raises RefusedError if that breaks the protocol."""
        if frame.type is FrameType.ASK:
            if frame.request in self._asked:
                raise protocol_broken(f"request {frame.request} is asked twice")
            self._asked[frame.request] = RelayedRequest(frame.request, frame.words, self._send)
            return
        if frame.type not in FROM_GATEWAY:
            raise protocol_broken(f"a gateway does not send {frame.type.name} now")
        # What belongs to an answer that has just ended comes too late, and changes nothing.
        if (asked := self._asked.get(frame.request)) is None:
            return
        match frame.type:
            case FrameType.PART if not asked.is_whole:
                asked.add(frame.payload)
            case FrameType.END if not asked.is_whole:
                asked.is_whole = True
                self._begin(asked)
            case FrameType.CANCEL if asked.is_whole:
                asked.leave()
            case FrameType.CANCEL:
                del self._asked[frame.request]
            case FrameType.CREDIT:
                asked.credit(frame.number)
            case _:
                raise protocol_broken(f"{frame.type.name} comes after the end of its request")

    async def close(self) -> None:
        for asked in self._asked.values():
            asked.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, asked: RelayedRequest) -> None:
        task = asyncio.create_task(asked.answered_by(self._app), name=f"request {asked.request} of the gateway")
        self._tasks.add(task)

        def end(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            del self._asked[asked.request]
            if not ended.cancelled() and (error := ended.exception()) is not None:
                log.error("%s failed", ended.get_name(), exc_info=error)

        task.add_done_callback(end)
