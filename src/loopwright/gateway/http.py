"""The small part of ASGI that the gateway needs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

import orjson

from loopwright.core.together import own_task
from loopwright.gateway.encoding import decoded
from loopwright.serve.guard import Receive, Scope, Send

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; version=0.0.4")
EVENTS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class ClientGoneError(Exception):
    """The client does not wait for the answer any more. This error never leaves the gateway."""


class Request:
    """One request, and the way to answer it. The answer names the request's `id`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = secrets.token_hex(12)
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._query: bytes = scope.get("query_string", b"")
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._gone = False
        self.status = 0

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def parameter(self, name: str) -> str | None:
        """The last value of a parameter in the URL."""
        given = parse_qs(self._query.decode("latin-1"), keep_blank_values=True).get(name)
        return given[-1] if given else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the client sent in the usual headers. Some clients send one in each."""
        kind, _, token = (self.header("authorization") or "").partition(" ")
        bearer = token.strip() if kind.lower() == "bearer" else ""
        sent = (bearer, self.header("x-api-key"), self.header("x-goog-api-key"))
        return tuple(key for key in sent if key)

    async def body(self) -> bytes:
        parts = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return decoded(b"".join(parts), self.header("content-encoding") or "")

    async def while_here(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. The work is cancelled if the client goes away."""
        here = own_task()
        leaving = asyncio.get_running_loop().create_task(self._leaves(here))
        try:
            return await work
        except asyncio.CancelledError:
            if not self._gone:
                raise
            here.uncancel()
            raise ClientGoneError from None
        finally:
            leaving.cancel()

    async def _leaves(self, here: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        here.cancel()

    async def answer(self, status: int, body: Mapping[str, Any], headers: Headers = ()) -> None:
        await self.answer_bytes(status, orjson.dumps(body), (JSON, *headers))

    async def answer_bytes(self, status: int, body: bytes, headers: Headers) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, (*headers, length))
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def begin(self, status: int, headers: Headers) -> None:
        self.status = status
        known = self.id.encode()
        named = [*headers, (b"x-request-id", known), (b"request-id", known)]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
