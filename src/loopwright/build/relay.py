"""Relays: the model of workers that dialled a gateway, the door that a run offers there, and a worker of its own."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.build.remote import RemoteEngine, remote_client, tokenizer_of
from loopwright.build.serving import ServedModel, opened_engine
from loopwright.core.redaction import Redactor
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.restartable import WAIT_SECONDS, RestartableEngine
from loopwright.errors import EngineError, EngineLostError, RefusedError
from loopwright.models.digest import model_digest
from loopwright.ports import OnPart
from loopwright.render.choose import make_renderer
from loopwright.serve.lease import LeaseHolder
from loopwright.track.redacting import redacting
from loopwright.types import GenerateRequest, Generation, Thinking

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from loopwright.engines.controller import RolloutController
    from loopwright.engines.http.streaming import GeneratingEngine
    from loopwright.gateway.offer import Served
    from loopwright.gateway.registration import RelayedDoor
    from loopwright.gateway.relay.admission import Relay
    from loopwright.gateway.relay.dialer import Dial
    from loopwright.gateway.relay.hello import Hello, WorkerModel
    from loopwright.gateway.relay.workers import RelayedWorker
    from loopwright.serve.guard import App

REFUSED_PAUSE_SECONDS = 5.0
AWAY_PAUSE_SECONDS = 1.0
BEAT_SECONDS = 1.0
CHECK_SECONDS = 10.0
"""How long an engine that a call has lost may take to say that it is there."""

log = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class Relayed:
    """No engine: workers dial in, or training runs. `model` names the tokenizer of the workers' model, and is the only
    model that they may serve. Calls wait up to `wait_seconds` for a worker, or for a run."""

    cache: Path
    model: str | None = None
    wait_seconds: float = WAIT_SECONDS


class RelayedModel:
    """The `WorkerEngines` of a gateway."""

    def __init__(self, settings: Relayed, renderer: str, thinking: Thinking) -> None:
        from loopwright.engines.relayed import RelayedEngines

        self._settings = settings
        self._renderer = renderer
        self._thinking = thinking
        self._engines = RelayedEngines()

    async def served(self, model: WorkerModel) -> tuple[Served, Callable[[], float]]:
        from loopwright.gateway.offer import Served, name_of
        from loopwright.gateway.relay.admission import OTHER_MODEL

        wanted = self._settings.model
        if wanted is not None and name_of(wanted) != model.name:
            raise RefusedError(
                f"this gateway is for workers that serve {name_of(wanted)}, and not {model.name}",
                remedy="serve that model, or name the one that you serve with --model",
                status=OTHER_MODEL,
            )
        tokenizer = await asyncio.to_thread(tokenizer_of, wanted or model.source, self._settings.cache)
        renderer = make_renderer(tokenizer, self._renderer, self._thinking)
        engine = RestartableEngine(self._engines, self._settings.wait_seconds, keeps_all=True)
        return Served(engine, renderer, model.max_context, model.source), engine.held_seconds

    def join(self, worker: RelayedWorker, version: int) -> None:
        from loopwright.engines.http.caller import KINDS_OF_WORKER
        from loopwright.engines.http.client import HttpEngine

        client = HttpEngine(worker, version, kinds=KINDS_OF_WORKER)
        self._engines.join(worker.name, client, lambda: worker.is_connected)


def relay_of(settings: Relayed, renderer: str, thinking: Thinking) -> Relay:
    from loopwright.gateway.relay.admission import Relay
    from loopwright.gateway.relay.workers import RelayedWorkers

    return Relay(RelayedWorkers(), RelayedModel(settings, renderer, thinking))


@asynccontextmanager
async def dialled_door(
    url: str, key: str, controller: RolloutController, card: ModelCard, holder: LeaseHolder
) -> AsyncIterator[RelayedDoor]:
    """Offer the door of a run to the gateway there, without a port of its own."""
    from loopwright.engines.http.door import door_app
    from loopwright.gateway.registration import RelayedDoor
    from loopwright.gateway.relay.dialer import Dial
    from loopwright.gateway.relay.hello import Hello

    # Another process that has the run open is another worker.
    name = f"{holder.run}-{holder.lineage}-{secrets.token_hex(4)}"

    async def hello() -> Hello:
        return Hello(name)

    dialling = asyncio.create_task(_dial_for_ever(Dial(url, key, door_app(controller, card), hello)))
    try:
        yield RelayedDoor(name)
    finally:
        dialling.cancel()
        await asyncio.wait((dialling,))


async def _dial_for_ever(dial: Dial) -> None:
    """What is wrong for good, the run is told when it registers; here it only goes into the log."""
    from loopwright.gateway.relay.dialer import keep_dialled

    while True:
        try:
            await keep_dialled(dial)
        except RefusedError as refusal:
            log.warning("%s", refusal.message)
        await asyncio.sleep(REFUSED_PAUSE_SECONDS)


def _never_held() -> float:
    """While its engine is away, a worker is not connected, and the gateway counts that."""
    return 0.0


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The gateway that a worker dials, and the worker's name there."""

    url: str
    key: str = field(repr=False)
    name: str


async def _hear_nothing() -> None:
    """The version of an engine in this process is always known, and that of another server never."""


class OfferedEngine:
    """An engine as a worker offers it. It counts as gone when a call has lost it and it does not tell its card either,
    until it does. Calls that lose it then wait for the end of their connection.

    `hear` asks an engine elsewhere for its version: others may load weights into it. `digest` is that of the model's
    files, if they were loaded here.
    """

    def __init__(
        self,
        engine: GeneratingEngine,
        name: str,
        card: Callable[[], Awaitable[ModelCard]],
        hear: Callable[[], Awaitable[None]] = _hear_nothing,
        digest: str | None = None,
    ) -> None:
        self._engine = engine
        self._name = name
        self._card = card
        self._hear = hear
        self._digest = digest
        self._lost = asyncio.Event()

    @property
    def version(self) -> int:
        return self._engine.version

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        try:
            return await self._engine.generate(request, on_part)
        except EngineLostError:
            # A server that is busy, or a proxy, may send away one call: the others go on.
            if not await self._is_there():
                # The connection is closed, and with it this call: all of them go on elsewhere.
                self._lost.set()
                await asyncio.Event().wait()
            raise

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def hello(self) -> Hello:
        """Wait until the engine answers."""
        from loopwright.gateway.relay.hello import Hello, WorkerModel

        while True:
            try:
                card = await self._card()
                await self._hear()
            except EngineLostError as error:
                if not self._lost.is_set():
                    log.warning("%s", error.message)
                self._lost.set()
                await asyncio.sleep(AWAY_PAUSE_SECONDS)
            else:
                self._lost.clear()
                return Hello(self._name, WorkerModel(card.source, card.max_context, self.version, self._digest))

    async def gone(self) -> None:
        await self._lost.wait()

    async def app(self) -> App:
        """The routes of those who only sample."""
        from starlette.routing import Route

        from loopwright.engines.http.server import app_of, generating_routes
        from loopwright.engines.http.streaming import Beat
        from loopwright.engines.http.wire import state_to_json

        beat = Beat(BEAT_SECONDS, lambda: state_to_json(self.version, _never_held))
        asked = Route("/version", self._tell_version)
        return app_of([asked, *generating_routes(self, await self._card(), beat, _never_held)])

    async def _tell_version(self, request: Request) -> Response:
        """The version now: the gateway asks before an answer goes on here."""
        from starlette.responses import JSONResponse

        from loopwright.engines.http.wire import state_to_json

        await self._hear()
        return JSONResponse(state_to_json(self.version, _never_held))

    async def _is_there(self) -> bool:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._card()
        except (EngineLostError, TimeoutError):
            return False
        except EngineError:
            # It has answered, though not well.
            return True
        return True


async def serve_worker(
    behind: ServedModel | RemoteEngine, place: WorkerPlace, on_connected: Callable[[], object]
) -> None:
    """Serve agents of the gateway there until this is cancelled. Raises RefusedError if the gateway does not take the
    worker."""
    from loopwright.gateway.relay.dialer import Dial, keep_dialled

    own_key = behind.key if isinstance(behind, RemoteEngine) else None
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(Redactor((place.key, own_key or ""))))
        engine = await stack.enter_async_context(_offered(behind, place.name))
        dial = Dial(place.url, place.key, await engine.app(), engine.hello, engine.gone, on_connected)
        await keep_dialled(dial)


@asynccontextmanager
async def _offered(behind: ServedModel | RemoteEngine, name: str) -> AsyncIterator[OfferedEngine]:
    from loopwright.engines.http.client import HttpEngine

    match behind:
        case ServedModel():
            async with opened_engine(behind) as (engine, loaded):
                card = ModelCard(behind.found, loaded.max_context)
                digest = await asyncio.to_thread(model_digest, Path(behind.model))

                async def own_card() -> ModelCard:
                    return card

                yield OfferedEngine(engine, name, own_card, digest=digest)
        case RemoteEngine():
            async with remote_client(behind) as client:

                async def card_there() -> ModelCard:
                    said = await client.model()
                    return ModelCard(behind.model or said.source, said.max_context)

                # Other servers than ours do not tell the version of their weights.
                hear = client.hear_state if isinstance(client, HttpEngine) else _hear_nothing
                yield OfferedEngine(client, name, card_there, hear)
