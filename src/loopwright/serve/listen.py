"""Serves an ASGI app while a context is open. The port is known from the beginning."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.utils import ClientDisconnected

from loopwright.config.addresses import is_loopback
from loopwright.errors import ConfigError
from loopwright.serve.guard import App, Guard, Message, Receive, Refuse, Scope, Send

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
GRACE_SECONDS = 1


@dataclass(frozen=True, slots=True)
class WebSockets:
    """The largest message, how often the other side is pinged, and how long it may take to answer that."""

    max_bytes: int
    beat_seconds: float
    silence_seconds: float


class _Server(uvicorn.Server):
    """A server that reports when it is ready. It does not handle signals: the process that runs it does."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    names: Iterable[str] = (),
    key: str | None,
    own_keys: bool = False,
    refuse: Refuse | None = None,
    websockets: WebSockets | None = None,
    own_pages: bool = False,
) -> AsyncIterator[int]:
    """Serve `app` behind a guard, and yield the port: the requested one, or a free one if it is 0.

    `names`: further names that clients use, for example through a proxy; on the loopback no other names are accepted.
    `own_keys`: the app has several keys and checks them itself. `refuse`: writes the guard's refusals. With
    `websockets` the app accepts them too. With `own_pages` it serves pages, which may ask it.
    """
    check_bind(host, key)
    hosts = (*LOOPBACK_NAMES, *names) if is_loopback(host) else None
    guarded: App = Guard(
        app,
        key=None if own_keys else key,
        hosts=hosts,
        refuse=refuse,
        websockets=websockets is not None,
        own_pages=own_pages,
    )
    config = uvicorn.Config(
        guarded if websockets is None else _without_false_alarms(guarded),
        lifespan="off",
        **_websocket_options(websockets),
        http="auto",
        log_level="warning",
        access_log=False,
        server_header=False,
        # The address of the client is not used.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    with _bound(host, port) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        serving.add_done_callback(lambda _: server.ready.set())
        try:
            await server.ready.wait()
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def _websocket_options(settings: WebSockets | None) -> dict[str, Any]:
    if settings is None:
        return {"ws": "none"}
    return {
        "ws": "websockets-sansio",
        "ws_max_size": settings.max_bytes,
        "ws_ping_interval": settings.beat_seconds,
        "ws_ping_timeout": settings.silence_seconds,
        # Compressed messages of a few bytes can be gigabytes.
        "ws_per_message_deflate": False,
    }


def _without_false_alarms(app: App) -> App:
    """uvicorn logs an error for every WebSocket that was refused with an HTTP answer, as if nobody had answered. About
    a client that is gone it says nothing."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        was_refused = False

        async def noticed(message: Message) -> None:
            nonlocal was_refused
            was_refused |= message["type"] == "websocket.http.response.start"
            await send(message)

        if scope["type"] != "websocket":
            await app(scope, receive, send)
            return
        await app(scope, receive, noticed)
        if was_refused:
            raise ClientDisconnected

    return served


def check_bind(host: str, key: str | None) -> None:
    """A server that others can reach needs a key (S3)."""
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"a server at {host} can be reached from other machines, and has no key",
            remedy="give it a key, or bind it to 127.0.0.1",
        )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small writes at once: otherwise each may wait 40 ms for the other side.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host}:{port}: {error}", remedy="choose another host or port") from error
    return listener
