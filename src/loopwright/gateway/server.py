"""A whole gateway, made from an engine and a renderer, that listens on a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from loopwright.config.addresses import can_have_paths, is_everywhere
from loopwright.errors import ConfigError
from loopwright.gateway.app import GatewayApp
from loopwright.gateway.calls import ModelCalls
from loopwright.gateway.exchange import Exchange
from loopwright.gateway.management import Management
from loopwright.gateway.metrics import Metrics
from loopwright.gateway.offer import Offer, Served
from loopwright.gateway.policy import SessionPolicies
from loopwright.gateway.relay.admission import Admission, Relay
from loopwright.gateway.relay.endpoint import RELAY_SOCKETS, RelayEndpoint
from loopwright.gateway.runs import ConnectRun, Runs
from loopwright.gateway.session import never_held
from loopwright.gateway.sessions import Sessions
from loopwright.gateway.store import SessionStore
from loopwright.serve.guard import App
from loopwright.serve.listen import listening


@dataclass(frozen=True, slots=True)
class Address:
    """Where a gateway listens, and the URL under which agents reach it, if that is another one. A URL that agents
    cannot use is an error at once, before a model is loaded."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise_url: str | None = None

    def __post_init__(self) -> None:
        if self.advertise_url is not None:
            object.__setattr__(self, "advertise_url", _checked(self.advertise_url))

    @property
    def names(self) -> tuple[str, ...]:
        """The host names under which clients reach the gateway, besides its own address."""
        host = _host_of(self.advertise_url) if self.advertise_url is not None else None
        return () if host is None else (host,)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is listening."""

    sessions: Sessions
    exchange: Exchange
    metrics: Metrics
    base_url: str
    port: int
    own_url: str
    """Where it listens. Agents may be told another URL."""

    def policies(self) -> SessionPolicies:
        """The policies of rollouts whose agents talk to this gateway."""
        return SessionPolicies(self.sessions, self.exchange, self.base_url, self.exchange.offer.current().name)


@asynccontextmanager
async def open_gateway(
    served: Served,
    store: SessionStore,
    *,
    key: str,
    address: Address | None = None,
    held: Callable[[], float] = never_held,
) -> AsyncIterator[Gateway]:
    """Listen, with the sessions in `store`. `key` opens everything. `held` reads the clock of held seconds: for how
    many seconds in total the engines have answered nobody."""
    offer = Offer(served, held)
    sessions = Sessions.restored(store, offer.held_seconds)
    async with _listening(offer, store, sessions, None, key, address or Address()) as gateway:
        yield gateway


@asynccontextmanager
async def open_gateway_for_runs(
    connect: ConnectRun,
    store: SessionStore,
    *,
    key: str,
    address: Address | None = None,
    wait_seconds: float,
    relay: Relay | None = None,
) -> AsyncIterator[Gateway]:
    """Listen without a model, until a run registers and brings one; `connect` connects to it. With `relay`, workers may
    dial in, and bring a model too. Calls wait up to `wait_seconds` for a model."""
    offer = Offer(wait_seconds=wait_seconds)
    sessions = Sessions.restored(store, offer.held_seconds)
    async with (
        aclosing(Runs(connect, sessions, offer)) as runs,
        _listening(offer, store, sessions, runs, key, address or Address(), relay) as gateway,
    ):
        yield gateway


@asynccontextmanager
async def _listening(
    offer: Offer,
    store: SessionStore,
    sessions: Sessions,
    runs: Runs | None,
    key: str,
    address: Address,
    relay: Relay | None = None,
) -> AsyncIterator[Gateway]:
    metrics, advertised = Metrics(), address.advertise_url
    exchange = Exchange(offer, store, metrics)
    app = gateway_app(exchange, sessions, metrics, key=key, advertised=advertised, runs=runs)
    front: App = app
    if relay is not None and runs is not None:
        front = RelayEndpoint(app, relay.workers, Admission(relay, offer, runs).admit, key=key)
    sweeping = asyncio.create_task(sessions.sweep())
    try:
        async with listening(
            front,
            host=address.host,
            port=address.port,
            names=address.names,
            key=key,
            own_keys=True,
            refuse=app.refuse,
            websockets=None if relay is None else RELAY_SOCKETS,
        ) as port:
            own_url = _own_url(address.host, port)
            try:
                yield Gateway(sessions, exchange, metrics, advertised or own_url, port, own_url)
            finally:
                exchange.close()
    finally:
        sweeping.cancel()
        await asyncio.wait((sweeping,))


def gateway_app(
    exchange: Exchange,
    sessions: Sessions,
    metrics: Metrics,
    *,
    key: str,
    advertised: str | None = None,
    runs: Runs | None = None,
) -> GatewayApp:
    """The ASGI app over the model that is offered, and its sessions. With `runs`, training runs bring the model."""
    management = Management(sessions, metrics, exchange.offer, advertised, runs)
    return GatewayApp(sessions, management, ModelCalls(sessions, exchange, metrics), key=key)


def _checked(url: str) -> str:
    """The URL that sessions return. Raises if agents cannot use it."""
    host = _host_of(url)
    if host is None:
        raise ConfigError(
            f"agents cannot reach a gateway at {url!r}", remedy="advertise a URL such as http://gateway.example:8080"
        )
    if is_everywhere(host):
        raise ConfigError(
            f"{url!r} names every address of this machine, and none that an agent could use",
            remedy="advertise the name or the address under which agents reach this machine",
        )
    return url.rstrip("/")


def _host_of(url: str) -> str | None:
    """The host of a URL. None if paths cannot be added to the URL."""
    if not can_have_paths(url):
        return None
    parts = urlsplit(url)
    return parts.hostname if parts.scheme in ("http", "https") else None


def _own_url(host: str, port: int) -> str:
    name = "127.0.0.1" if is_everywhere(host) else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"
