"""The gateway of a run, for agents that talk HTTP, and the gateway on its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.build.relay import Relayed, relay_of
from loopwright.build.remote import RemoteEngine, connected
from loopwright.build.serving import ServedModel, opened_engine
from loopwright.config import GatewayConfig, Loaded, RunConfig
from loopwright.config.addresses import is_loopback
from loopwright.core.redaction import Redactor
from loopwright.engines.restartable import FIRST_PAUSE_SECONDS, WAIT_SECONDS, RestartableEngine
from loopwright.errors import ConfigError, EngineLostError
from loopwright.models.tokenizer import ModelSpec, TokenizerSource, load_tokenizer
from loopwright.ports import StreamingEngine
from loopwright.render.choose import make_renderer
from loopwright.serve.lease import LeaseHolder
from loopwright.track.redacting import redacting
from loopwright.types import Thinking

if TYPE_CHECKING:
    from loopwright.engines.http.client import HttpEngine
    from loopwright.gateway.offer import Served
    from loopwright.gateway.policy import SessionPolicies
    from loopwright.gateway.registration import DoorAddress, RelayedDoor, RunModel
    from loopwright.gateway.relay.workers import RelayedWorkers
    from loopwright.gateway.remote_policy import RemoteSessionPolicies
    from loopwright.gateway.server import Address, Gateway
    from loopwright.gateway.takeover import Unfinished

DOOR_SECONDS = 30.0
"""How long a gateway tries to reach the door of a run that registers."""
HEARING_SECONDS = 1.0
"""How often a gateway asks the door for the held seconds. So a new session is not told what was held before it."""


@asynccontextmanager
async def served_policies(
    config: RunConfig, engine: StreamingEngine, model: ModelSpec, held: Callable[[], float]
) -> AsyncIterator[SessionPolicies]:
    """Open the run's own gateway, and give policies that are its sessions.

    Its sessions end with the process. What they record is stored as rollouts, like all others.
    """
    from loopwright.gateway.offer import Served
    from loopwright.gateway.server import Address, open_gateway
    from loopwright.gateway.store import MemoryStore
    from loopwright.serve.keys import new_key

    settings = config.gateway
    address = Address(settings.host, settings.port, settings.advertise_url)
    renderer = make_renderer(model.tokenizer, config.model.renderer, config.gateway.thinking)
    served = Served(engine, renderer, model.max_context, config.model.path)
    async with open_gateway(served, MemoryStore(), key=new_key(), address=address, held=held) as gateway:
        yield gateway.policies()


@dataclass(frozen=True, slots=True)
class RunSessions:
    """What a run needs to have its sessions at a gateway that is reached over HTTP. What its earlier process has
    completed there for the `unfinished` groups is taken over. `held` says for how many seconds in total its engines
    have answered nobody."""

    loaded: Loaded
    brought: RunModel
    holder: LeaseHolder
    unfinished: Unfinished
    held: Callable[[], float]
    redact: Redactor

    def open(self, url: str, key: str) -> AbstractAsyncContextManager[RemoteSessionPolicies]:
        """Register the run with the gateway there, and give policies that are its sessions."""
        from loopwright.gateway.client import GatewayAddress
        from loopwright.gateway.registration import Registration
        from loopwright.gateway.remote_policy import open_remote_policies

        own = Registration(self.holder, secrets.token_hex(4), self.brought)
        return open_remote_policies(GatewayAddress(url, key), own, self.unfinished, held=self.held, redact=self.redact)

    def elsewhere(self) -> AbstractAsyncContextManager[RemoteSessionPolicies]:
        """Sessions at the gateway that the config names."""
        return self.open(*gateway_elsewhere(self.loaded))

    @asynccontextmanager
    async def here(
        self, engine: StreamingEngine, model: ModelSpec, address: str
    ) -> AsyncIterator[RemoteSessionPolicies]:
        """Sessions at a gateway in this process, which agents in other processes share. It listens on `address`."""
        from loopwright.gateway.server import open_gateway_for_runs
        from loopwright.gateway.store import MemoryRecords
        from loopwright.serve.keys import new_key

        config, key = self.loaded.config, new_key()
        renderer = make_renderer(model.tokenizer, config.model.renderer, config.gateway.thinking)

        @asynccontextmanager
        async def connect(brought: RunModel) -> AsyncIterator[tuple[Served, Callable[[], float]]]:
            from loopwright.gateway.offer import Served

            yield Served(engine, renderer, model.max_context, config.model.path), self.held

        where = gateway_address(config.gateway, address)
        async with (
            open_gateway_for_runs(
                connect, MemoryRecords(), key=key, address=where, wait_seconds=WAIT_SECONDS
            ) as gateway,
            self.open(gateway.own_url, key) as sessions,
        ):
            yield sessions


def gateway_elsewhere(loaded: Loaded) -> tuple[str, str]:
    """The URL and the key of the gateway that the config names."""
    settings = loaded.config.gateway
    name = settings.key_env or ""
    if not (key := loaded.secrets.get(name)):
        raise ConfigError(f"the environment variable {name} is not set", remedy=f"export {name}: the gateway's key")
    return settings.url or "", key


def gateway_address(settings: GatewayConfig, address: str) -> Address:
    """Where a gateway listens that processes on other machines reach at `address`. A `host` that only this machine
    reaches is not used."""
    from loopwright.gateway.server import Address

    return Address(address if is_loopback(settings.host) else settings.host, settings.port, settings.advertise_url)


def run_model_of(config: RunConfig, model: ModelSpec, door: DoorAddress | RelayedDoor) -> RunModel:
    """The run's model, as processes without its weights use it: the door, and what messages are written with."""
    from loopwright.gateway.registration import RunModel

    tokenizer = TokenizerSource.of(model.tokenizer)
    return RunModel(
        door=door,
        source=config.model.path,
        tokenizer=tokenizer.path,
        tokenizer_kind=tokenizer.kind,
        max_context=model.max_context,
        renderer=config.model.renderer,
        thinking=config.gateway.thinking,
    )


@dataclass(frozen=True, slots=True)
class ForRuns:
    """No model: training runs bring theirs. Calls wait up to `wait_seconds` for a run, and for the door of one."""

    wait_seconds: float = WAIT_SECONDS


@asynccontextmanager
async def serve_gateway(
    behind: ServedModel | RemoteEngine | ForRuns | Relayed,
    address: Address,
    *,
    store: Path,
    key: str,
    renderer: str,
    thinking: Thinking,
) -> AsyncIterator[Gateway]:
    """A gateway without a run, in front of a model in this process or an engine elsewhere, or for runs and workers that
    come. `store` keeps its sessions."""
    from loopwright.gateway.server import open_gateway, open_gateway_for_runs
    from loopwright.gateway.session import never_held
    from loopwright.gateway.store import SqliteStore

    redact = Redactor((key, behind.key or "")) if isinstance(behind, RemoteEngine) else Redactor((key,))
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(redact))
        match behind:
            case ForRuns() | Relayed():
                relay = relay_of(behind, renderer, thinking) if isinstance(behind, Relayed) else None
                sessions = await stack.enter_async_context(SqliteStore(store, redact))
                seconds, workers = behind.wait_seconds, None if relay is None else relay.workers
                connect = partial(run_model, wait_seconds=seconds, workers=workers)
                opening = open_gateway_for_runs(
                    connect, sessions, key=key, address=address, wait_seconds=seconds, relay=relay
                )
                yield await stack.enter_async_context(opening)
                return
            case RemoteEngine():
                served, held = await stack.enter_async_context(_remote(behind, renderer, thinking))
            case ServedModel():
                served, held = await stack.enter_async_context(_embedded(behind, renderer, thinking)), never_held
        sessions = await stack.enter_async_context(SqliteStore(store, redact))
        yield await stack.enter_async_context(open_gateway(served, sessions, key=key, address=address, held=held))


@asynccontextmanager
async def run_model(
    model: RunModel, *, wait_seconds: float = WAIT_SECONDS, workers: RelayedWorkers | None = None
) -> AsyncIterator[tuple[Served, Callable[[], float]]]:
    """The model of a run, whose engines are behind its door, and the clock of held seconds: the engines are held, or
    calls wait for a door that cannot be reached. `workers` are those of the gateway's relay, if it has one."""
    from loopwright.gateway.offer import Served

    async with model_behind_door(model, workers) as (door, tokenizer):
        engine = RestartableEngine(door, wait_seconds, keeps_all=True)
        renderer = make_renderer(tokenizer, model.renderer, model.thinking)
        served = Served(engine, renderer, model.max_context, model.source)
        yield served, lambda: door.held_seconds() + engine.held_seconds()


@asynccontextmanager
async def model_behind_door(
    model: RunModel, workers: RelayedWorkers | None = None
) -> AsyncIterator[tuple[HttpEngine, Any]]:
    """The engines behind a run's door, which tell how long they were held, and the tokenizer. Without torch."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(DOOR_SECONDS):
                door = await _reached(model.door, workers, stack)
                await stack.enter_async_context(door.hearing(HEARING_SECONDS))
        except TimeoutError:
            raise EngineLostError(
                f"the run's door ({model.door}) does not answer",
                remedy="let the run dial this gateway's relay (gateway.relay), or set rollout.door so that the machine "
                "of the gateway or of the agents can reach it",
            ) from None
        yield door, await asyncio.to_thread(load_tokenizer, model.tokenizer, model.tokenizer_kind)


async def _reached(
    door: DoorAddress | RelayedDoor, workers: RelayedWorkers | None, stack: AsyncExitStack
) -> HttpEngine:
    from loopwright.engines.http.client import HttpEngine
    from loopwright.gateway.registration import DoorAddress

    if isinstance(door, DoorAddress):
        return await stack.enter_async_context(HttpEngine.connect(door.url, door.key))
    if workers is None:
        raise ConfigError(
            "the run dials the gateway (gateway.relay), and this gateway has no relay", remedy="start it with --relay"
        )
    worker = workers.named(door.worker)
    while True:
        await worker.connected()
        try:
            return await HttpEngine.over(worker)
        except EngineLostError:
            # The connection broke off, and the run dials again.
            await asyncio.sleep(FIRST_PAUSE_SECONDS)


@asynccontextmanager
async def _embedded(behind: ServedModel, renderer: str, thinking: Thinking) -> AsyncIterator[Served]:
    from loopwright.gateway.offer import Served

    async with opened_engine(behind) as (engine, model):
        yield Served(engine, make_renderer(model.tokenizer, renderer, thinking), model.max_context, behind.model)


@asynccontextmanager
async def _remote(
    behind: RemoteEngine, renderer: str, thinking: Thinking
) -> AsyncIterator[tuple[Served, Callable[[], float]]]:
    """The model, and the clock of held seconds: calls that wait for an engine that went away are held."""
    from loopwright.gateway.offer import Served

    async with connected(behind) as (engine, model):
        chosen = make_renderer(model.tokenizer, renderer, thinking)
        yield Served(engine, chosen, model.max_context, model.name), engine.held_seconds
