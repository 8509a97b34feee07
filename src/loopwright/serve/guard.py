"""The access check of every server (S3).

A request needs the right key, if the server has one. It needs a Host that the server answers to, so that no web page
can reach it under another name. It must have no Origin, because no browser should use these servers; only a server with
pages takes the Origin of its own pages. Its body must be within limits. Only the path `/health` needs no key: it only
says that the server is there.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from loopwright.errors import RefusedError
from loopwright.serve.errors import error_body

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, Send, RefusedError], Awaitable[None]]

OPEN_PATH = "/health"
MAX_BODY_BYTES = 64 << 20


class Guard:
    """An ASGI app in front of another. With `hosts` None it accepts every Host, for servers that are bound to all
    addresses.

    `refuse` writes the answer to a refused request, for apps with their own error format. With `websockets`, the app
    accepts WebSockets too, under the same rules; the server limits the size of their messages. With `own_pages`, the
    app serves pages, and these may ask it.
    """

    def __init__(
        self,
        app: App,
        *,
        key: str | None,
        hosts: Iterable[str] | None,
        max_body: int = MAX_BODY_BYTES,
        refuse: Refuse | None = None,
        websockets: bool = False,
        own_pages: bool = False,
    ) -> None:
        self._app = app
        self._own_pages = own_pages
        self._kinds = ("http", "websocket") if websockets else ("http",)
        self._refuse = refuse or _refuse_plainly
        self._expected = None if key is None else f"Bearer {key}".encode()
        self._hosts = None if hosts is None else frozenset(hosts)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in self._kinds:
            raise RuntimeError(f"this guarded server does not speak {scope['type']}")
        is_http = scope["type"] == "http"
        try:
            self._check(scope["path"], dict(scope["headers"]))
        except RefusedError as refused:
            await (self._refuse(scope, send, refused) if is_http else answer_error(denial(send), refused))
            return
        await self._app(scope, self._limited(receive) if is_http else receive, send)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        named = headers.get(b"host", b"")
        host = _host(named.decode("latin-1"))
        if self._hosts is not None and host not in self._hosts:
            raise RefusedError(
                f"this server does not answer to the name {host!r}",
                remedy=f"ask for {' or '.join(sorted(self._hosts))}",
                status=403,
            )
        own = (b"http://" + named, b"https://" + named) if self._own_pages else ()
        if b"origin" in headers and headers[b"origin"] not in own:
            raise RefusedError(
                "this server is not for web pages of others", remedy="ask without an Origin header", status=403
            )
        if self._expected is not None and path != OPEN_PATH:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                raise RefusedError(
                    "the key is missing or wrong",
                    remedy="send it as `authorization: Bearer KEY`",
                    status=401,
                )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._too_long()

    def _limited(self, receive: Receive) -> Receive:
        left = self._max_body

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_long()
            return message

        return limited

    def _too_long(self) -> RefusedError:
        return RefusedError(
            f"a body may have {self._max_body:,} bytes at most", remedy="send less at a time", status=413
        )


async def _refuse_plainly(scope: Scope, send: Send, error: RefusedError) -> None:
    await answer_error(send, error)


async def answer_error(send: Send, error: RefusedError) -> None:
    body = json.dumps(error_body(error)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.facts["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})


def denial(send: Send) -> Send:
    """Sends an HTTP answer to somebody who asked for a WebSocket, and does not get it."""

    async def deny(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return deny


def _host(header: str) -> str:
    """The host in lower case, without the port. An IPv6 address has no brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
