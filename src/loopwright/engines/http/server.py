"""The engine's server: vLLM's routes over any engine that streams its tokens.

It keeps no state. Tokens are sent while they are sampled, so a client still has them if this process dies. The last
tokens are sent together with the finish reason, so a client that has the whole answer always knows it. When a client
goes away, its request is ended.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from loopwright.engines.http.model_card import MODELS, ModelCard, cards_to_json
from loopwright.engines.http.streaming import BEAT_SECONDS, WhileConnected, write_answer, write_parts
from loopwright.engines.http.wire import GENERATE, request_from_json, weights_from_json
from loopwright.errors import LoopwrightError, RefusedError, WeightsError
from loopwright.ports import StreamingEngine
from loopwright.serve.errors import error_body
from loopwright.types import PauseMode

MODES = {"wait": PauseMode.DRAIN, "abort": PauseMode.ABORT, "keep": PauseMode.KEEP}


def engine_app(
    engine: StreamingEngine, *, card: ModelCard | None = None, beat_seconds: float = BEAT_SECONDS
) -> Starlette:
    """The ASGI app. It must be served behind a `Guard`. `card` says which model is served."""
    routes = _Routes(engine, card, beat_seconds)
    return Starlette(
        routes=[
            Route(GENERATE, routes.generate, methods=["POST"]),
            Route("/abort_requests", routes.abort_requests, methods=["POST"]),
            Route("/pause", routes.pause, methods=["POST"]),
            Route("/resume", routes.resume, methods=["POST"]),
            Route("/is_paused", routes.is_paused),
            Route("/weights", routes.weights, methods=["POST"]),
            Route("/version", routes.version),
            Route(MODELS, routes.models),
            Route("/health", routes.health),
        ],
        exception_handlers={LoopwrightError: _answer_error},
    )


class _Routes:
    def __init__(self, engine: StreamingEngine, card: ModelCard | None, beat_seconds: float) -> None:
        self._engine = engine
        self._card = card
        self._beat_seconds = beat_seconds
        self._paused = False

    async def generate(self, request: Request) -> Response:
        body = await _json(request)
        asked = request_from_json(body)
        if body.get("stream"):
            write = partial(write_parts, self._engine, asked, self._beat_seconds)
            return WhileConnected(write, "text/event-stream")
        return WhileConnected(partial(write_answer, self._engine, asked), "application/json")

    async def abort_requests(self, request: Request) -> Response:
        body = await _json(request)
        ids = body.get("request_ids") if isinstance(body, dict) else None
        if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
            raise RefusedError("request_ids must be a list of strings", remedy="name the requests to end", status=400)
        for id in ids:
            await self._engine.abort(id)
        return JSONResponse({})

    async def pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in MODES:
            raise RefusedError(f"there is no mode {mode!r}", remedy=f"use one of {', '.join(MODES)}", status=400)
        self._paused = True
        await self._engine.pause(MODES[mode])
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        await self._engine.resume()
        self._paused = False
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self._paused})

    async def weights(self, request: Request) -> Response:
        version, file = weights_from_json(await _json(request))
        await self._engine.load(version, file)
        return JSONResponse({"version": version})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": self._engine.version})

    async def models(self, request: Request) -> Response:
        return JSONResponse(cards_to_json([self._card] if self._card else []))

    async def health(self, request: Request) -> Response:
        return JSONResponse({})


async def _json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except ValueError as error:
        raise RefusedError(f"the body is no JSON: {error}", remedy="send a JSON object", status=400) from error


async def _answer_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, LoopwrightError):
        raise error
    status = 422 if isinstance(error, WeightsError) else error.facts.get("status", 500)
    return JSONResponse(error_body(error), status)
