"""The engine's server: vLLM's routes over any engine that streams its tokens.

It keeps no state but the lease on the weights. Tokens are sent while they are sampled, so a client still has them if
this process dies. The last tokens are sent together with the finish reason, so a client that has the whole answer
always knows it. When a client goes away, its request is ended.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from loopwright.engines.http.model_card import MODELS, ModelCard, cards_to_json
from loopwright.engines.http.streaming import (
    BEAT_SECONDS,
    Beat,
    GeneratingEngine,
    WhileConnected,
    write_answer,
    write_parts,
)
from loopwright.engines.http.wire import (
    GENERATE,
    PROBE,
    held_error_to_json,
    probe_to_json,
    request_from_json,
    state_to_json,
    update_from_json,
)
from loopwright.errors import (
    AlternativesError,
    ConstraintError,
    LoopwrightError,
    OutOfTimeError,
    RefusedError,
    UnanswerableError,
    WeightsError,
)
from loopwright.ports import StreamingEngine
from loopwright.serve.guard import App, Receive, Scope, Send, answer_error
from loopwright.serve.lease import INSTANCE_HEADER, LEASE, Lease, LeaseHolder, lease_from_json, lease_to_json
from loopwright.types import PauseMode

ABORT = "/abort_requests"
MODES = {"wait": PauseMode.DRAIN, "abort": PauseMode.ABORT, "keep": PauseMode.KEEP}
STATUSES = {
    WeightsError: 422,
    OutOfTimeError: 408,
    UnanswerableError: 400,
    ConstraintError: 400,
    AlternativesError: 400,
}


def engine_app(
    engine: StreamingEngine,
    *,
    card: ModelCard | None = None,
    beat_seconds: float = BEAT_SECONDS,
    lease: Lease | None = None,
) -> App:
    """The ASGI app. It must be served behind a `Guard`. `card` says which model is served."""
    instance = secrets.token_hex(8)
    routes = _ManagingRoutes(engine, lease or Lease(), instance)
    app = app_of(
        [
            *generating_routes(engine, card, Beat(beat_seconds)),
            Route("/pause", routes.pause, methods=["POST"]),
            Route("/resume", routes.resume, methods=["POST"]),
            Route("/is_paused", routes.is_paused),
            Route("/weights", routes.weights, methods=["POST"]),
            Route(PROBE, routes.probe, methods=["POST"]),
            Route(LEASE, routes.take_lease, methods=["POST"]),
            Route(LEASE, routes.release_lease, methods=["DELETE"]),
        ]
    )
    return _OneInstance(app, instance)


def app_of(routes: Sequence[Route]) -> Starlette:
    """An app of these routes. Its errors have our shape."""
    return Starlette(routes=routes, exception_handlers={LoopwrightError: _answer_error})


class _OneInstance:
    """Refuses requests that are meant for an earlier start of the server: its weights and its lease are gone."""

    def __init__(self, app: App, instance: str) -> None:
        self._app = app
        self._instance = instance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get(INSTANCE_HEADER, self._instance) == self._instance:
            await self._app(scope, receive, send)
        else:
            remedy = "load the weights into it, and ask again"
            await answer_error(send, RefusedError("the engine was started again", remedy=remedy, status=503))


def generating_routes(
    engine: GeneratingEngine, card: ModelCard | None, beat: Beat, held: Callable[[], float] | None = None
) -> list[Route]:
    """The routes of those who only sample. `held` reads the clock of held seconds, if there is one."""
    routes = _GeneratingRoutes(engine, card, beat, held)
    return [
        Route(GENERATE, routes.generate, methods=["POST"]),
        Route(ABORT, routes.abort_requests, methods=["POST"]),
        Route("/version", routes.version),
        Route(MODELS, routes.models),
        Route("/health", routes.health),
    ]


class _GeneratingRoutes:
    def __init__(
        self, engine: GeneratingEngine, card: ModelCard | None, beat: Beat, held: Callable[[], float] | None
    ) -> None:
        self._engine = engine
        self._card = card
        self._beat = beat
        self._held = held

    async def generate(self, request: Request) -> Response:
        body = await _json(request)
        asked = request_from_json(body)
        if body.get("stream"):
            return WhileConnected(partial(write_parts, self._engine, asked, self._beat), "text/event-stream")
        return WhileConnected(partial(write_answer, self._engine, asked), "application/json")

    async def abort_requests(self, request: Request) -> Response:
        body = await _json(request)
        ids = body.get("request_ids") if isinstance(body, dict) else None
        if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
            raise RefusedError("request_ids must be a list of strings", remedy="name the requests to end", status=400)
        for id in ids:
            await self._engine.abort(id)
        return JSONResponse({})

    async def version(self, request: Request) -> Response:
        return JSONResponse(state_to_json(self._engine.version, self._held))

    async def models(self, request: Request) -> Response:
        return JSONResponse(cards_to_json([self._card] if self._card else []))

    async def health(self, request: Request) -> Response:
        return JSONResponse({} if self._held is None else state_to_json(self._engine.version, self._held))


class _ManagingRoutes:
    """The routes of the run whose engine it is. While a run holds the lease, nobody else may use them."""

    def __init__(self, engine: StreamingEngine, lease: Lease, instance: str) -> None:
        self._engine = engine
        self._lease = lease
        self._instance = instance
        self._paused = False

    async def pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in MODES:
            raise RefusedError(f"there is no mode {mode!r}", remedy=f"use one of {', '.join(MODES)}", status=400)
        self._check_lease(request)
        self._paused = True
        await self._engine.pause(MODES[mode])
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        self._check_lease(request)
        await self._engine.resume()
        self._paused = False
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self._paused})

    async def weights(self, request: Request) -> Response:
        version, update = update_from_json(await _json(request))
        self._check_lease(request)
        await self._engine.load(version, update)
        return JSONResponse({"version": version})

    async def probe(self, request: Request) -> Response:
        asked = request_from_json(await _json(request))
        self._check_lease(request)
        return JSONResponse(probe_to_json(await self._engine.probe(asked)))

    async def take_lease(self, request: Request) -> Response:
        holder, seconds = lease_from_json(await _json(request))
        self._lease.take(holder, seconds)
        return JSONResponse({**lease_to_json(holder, seconds), "instance": self._instance})

    async def release_lease(self, request: Request) -> Response:
        self._lease.release(LeaseHolder.of_headers(request.headers))
        return JSONResponse({})

    def _check_lease(self, request: Request) -> None:
        self._lease.check(LeaseHolder.of_headers(request.headers))


async def _json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except ValueError as error:
        raise RefusedError(f"the body is no JSON: {error}", remedy="send a JSON object", status=400) from error


async def _answer_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, LoopwrightError):
        raise error
    return JSONResponse(held_error_to_json(error), STATUSES.get(type(error)) or error.facts.get("status", 500))
