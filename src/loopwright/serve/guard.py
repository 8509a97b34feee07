"""The door of every server (S3): who may come in, through which name, and with how much.

A request needs the right key, if there is one; a Host that we answer to, so that no web page can reach us under a name
of its own; no Origin, because no browser has anything to ask here; and a body within limits. The path `/health` alone
is open without a key: it says nothing but that somebody is there.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from loopwright.errors import RefusedError
from loopwright.serve.errors import error_body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, Send, RefusedError], Awaitable[None]]

OPEN_PATH = "/health"
MAX_BODY_BYTES = 64 << 20


class Guard:
    """An ASGI app in front of another. `hosts` None answers to every Host, for servers that are bound to all.

    `refuse` answers those who may not come in, for apps that have words of their own for it.
    """

    def __init__(
        self,
        app: App,
        *,
        key: str | None,
        hosts: Iterable[str] | None,
        max_body: int = MAX_BODY_BYTES,
        refuse: Refuse | None = None,
    ) -> None:
        self._app = app
        self._refuse = refuse or _refuse_plainly
        self._expected = None if key is None else f"Bearer {key}".encode()
        self._hosts = None if hosts is None else frozenset(hosts)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a guarded server speaks HTTP only, not {scope['type']}")
        try:
            self._check(scope["path"], dict(scope["headers"]))
        except RefusedError as refused:
            await self._refuse(scope, send, refused)
            return
        await self._app(scope, self._limited(receive), send)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        host = _host(headers.get(b"host", b"").decode("latin-1"))
        if self._hosts is not None and host not in self._hosts:
            raise RefusedError(
                f"this server does not answer to the name {host!r}",
                remedy=f"ask for {' or '.join(sorted(self._hosts))}",
                status=403,
            )
        if b"origin" in headers:
            raise RefusedError("this server is not for web pages", remedy="ask without an Origin header", status=403)
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

        async def limited() -> MutableMapping[str, Any]:
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


def _host(header: str) -> str:
    """Without the port, in lower case; an IPv6 address without its brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
