"""A small HTTP client for one server, with connections that are kept open. It has only what an engine's client needs.

A connection carries one request at a time. If its answer was not read to the end, because the caller left or because
the answer broke off, the connection is closed, and the server then ends the request. Any other connection is used
again.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from loopwright.ports import Waiting

CONNECT_SECONDS = 10.0
TRIES = 3
"""How often a request is sent. A kept connection may have been reset, so the request is sent again on a new one."""
PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""The system probes a silent connection after this many seconds, at this interval, and this many times."""


class LostError(Exception):
    """The server cannot be reached, or has gone. It never leaves the engine's client."""


class ResetError(LostError):
    """The connection closed before any answer, so the caller may ask again."""


async def give_up() -> None:
    raise LostError("it says nothing")


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds of silence are allowed, and what is called then. If `after` returns, the wait continues."""

    seconds: float
    after: Callable[[], Awaitable[None]] = give_up


class ResponseConnection(asyncio.Protocol):
    """A connection, and what arrives on it. `status` is set when `begun` has returned."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: asyncio.Future[bool] | None = None
        self._lost: LostError | None = None
        self._patience: Waiting = Patience(0.0)
        self._start()

    def _start(self) -> None:
        self._parser = HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._heard = False
        self._whole = False
        self._kept = False
        self.status = 0

    @property
    def is_free(self) -> bool:
        """Whether another request may use it."""
        return self._lost is None and self._whole and self._kept

    def ask(self, request: bytes, patience: Waiting) -> None:
        self._start()
        self._patience = patience
        if self._transport is None or self._lost is not None:
            raise ResetError("the connection is closed")
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def begun(self) -> None:
        """Wait for the head of the answer."""
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """The rest of the body."""
        while not self._whole:
            await self._wait()
        return self._taken()

    async def more(self) -> bytes:
        """The part of the body that has arrived since the last call. Empty at the end of the body."""
        while not self._pieces and not self._whole:
            await self._wait()
        return self._taken()

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost if self._heard else ResetError(str(self._lost))
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

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Its class is not checked: an event loop may have its own class for it, as uvloop does.
        self._transport = cast(asyncio.WriteTransport, transport)
        # A server may be healthy and not know this connection: it was started again, or a firewall has forgotten the
        # connection. Nobody would ever answer on it, so the system probes it.
        end = transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._lost = LostError(f"it does not speak HTTP: {error}")
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._lost or LostError(str(exc) if exc else "it closed the connection")
        self._wake()

    # The parser calls these.

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        # Ask now: the parser knows this only until it waits for the next message.
        self._kept = self._parser.should_keep_alive()
        self._whole = True


class Connections:
    """The connections to one server: as many as there are requests at the same time. Leaving the context closes
    them."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        self.url = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/")
        lines = [f"host: {parts.netloc.rpartition('@')[2]}", "content-type: application/json"]
        self._headers = "".join(f"{line}\r\n" for line in [*lines, *([f"authorization: Bearer {key}"] if key else [])])
        self._free: list[ResponseConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Send these with every later request."""
        self._headers += "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    @asynccontextmanager
    async def ask(self, method: str, path: str, body: bytes, patience: Waiting) -> AsyncIterator[ResponseConnection]:
        """Send a request, and yield its answer when the answer's head has arrived."""
        answer = await self._asked(self._request(method, path, body), patience)
        try:
            yield answer
        finally:
            self._leave(answer)

    async def whole(self, method: str, path: str, body: bytes, patience: Waiting) -> tuple[int, bytes]:
        """The status and the whole body of an answer."""
        answer = await self._asked(self._request(method, path, body), patience)
        try:
            return answer.status, await answer.read()
        finally:
            self._leave(answer)

    def close(self) -> None:
        for connection in self._free:
            connection.close()
        self._free.clear()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._headers}content-length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    async def _asked(self, request: bytes, patience: Waiting) -> ResponseConnection:
        for _ in range(TRIES - 1):
            with suppress(ResetError):
                return await _begun(self._free.pop() if self._free else await self._connect(), request, patience)
        return await _begun(await self._connect(), request, patience)

    def _leave(self, connection: ResponseConnection) -> None:
        if connection.is_free:
            self._free.append(connection)
        else:
            connection.close()

    async def _connect(self) -> ResponseConnection:
        secure = ssl.create_default_context() if self._secure else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, made = await asyncio.get_running_loop().create_connection(
                    ResponseConnection, self._host, self._port, ssl=secure
                )
        except (OSError, TimeoutError) as error:
            raise LostError(f"{type(error).__name__} {error}".rstrip()) from error
        return made


async def _begun(connection: ResponseConnection, request: bytes, patience: Waiting) -> ResponseConnection:
    try:
        connection.ask(request, patience)
        await connection.begun()
    except BaseException:
        connection.close()
        raise
    return connection
