"""A whole gateway: from an engine and a renderer to a port that agents can talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from loopwright.errors import ConfigError
from loopwright.gateway.app import GatewayApp
from loopwright.gateway.calls import ModelCalls
from loopwright.gateway.exchange import Exchange
from loopwright.gateway.management import Management
from loopwright.gateway.metrics import Metrics
from loopwright.gateway.sessions import Sessions
from loopwright.gateway.store import SessionStore
from loopwright.ports import Renderer, StreamingEngine
from loopwright.serve.listen import listening

EVERYWHERE = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a gateway offers. `name` is what it is called in lists."""

    engine: StreamingEngine
    renderer: Renderer
    max_context: int
    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """Where a gateway listens, and the URL under which agents reach it, if that is another."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise_url: str | None = None


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is listening."""

    sessions: Sessions
    metrics: Metrics
    base_url: str
    port: int


@asynccontextmanager
async def open_gateway(
    served: Served, store: SessionStore, *, key: str, address: Address | None = None
) -> AsyncIterator[Gateway]:
    """Listen, with the sessions that are in `store`. `key` opens everything."""
    address = address or Address()
    advertised = check_advertised(address.advertise_url)
    metrics, sessions = Metrics(), await Sessions.restored(store)
    app = gateway_app(served, store, sessions, metrics, key=key, advertised=advertised)
    sweeping = asyncio.create_task(sessions.sweep())
    try:
        async with listening(
            app, host=address.host, port=address.port, key=key, own_keys=True, refuse=app.refuse
        ) as port:
            yield Gateway(sessions, metrics, advertised or _own_url(address.host, port), port)
    finally:
        sweeping.cancel()
        await asyncio.wait((sweeping,))


def gateway_app(
    served: Served,
    store: SessionStore,
    sessions: Sessions,
    metrics: Metrics,
    *,
    key: str,
    advertised: str | None = None,
) -> GatewayApp:
    """The ASGI app over a model and its sessions."""
    exchange = Exchange(served.engine, served.renderer, served.max_context, store, metrics)
    return GatewayApp(
        sessions,
        Management(sessions, metrics, advertised, served.name),
        ModelCalls(sessions, exchange, metrics, served.name),
        key=key,
    )


def check_advertised(url: str | None) -> str | None:
    """The URL that sessions return, if agents can use it."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"agents cannot reach a gateway at {url!r}", remedy="advertise a URL such as http://gateway.example:8080"
        )
    if parts.hostname in EVERYWHERE:
        raise ConfigError(
            f"{url!r} names every address of this machine, and none that an agent could use",
            remedy="advertise the name or the address under which agents reach this machine",
        )
    return url.rstrip("/")


def _own_url(host: str, port: int) -> str:
    name = "127.0.0.1" if host in EVERYWHERE else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"
