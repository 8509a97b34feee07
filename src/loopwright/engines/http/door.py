"""The door of a run: its engines over HTTP, for those who sample and nothing else.

It has the generating part of an engine's routes. Weights, pauses and leases belong to the run, so the door refuses them
(403). A call through the door is the run's own call: the controller answers it, continues it when an engine dies, and
holds it during a weight update. The caller's seconds are counted here, because only this side knows when a call is
held. While a call is out, the door tells the reading of that clock.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loopwright.core.in_flight import DOOR
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.http.server import app_of, generating_routes
from loopwright.engines.http.streaming import Beat
from loopwright.engines.http.wire import PROBE, state_to_json
from loopwright.engines.timed import TimedClient
from loopwright.errors import RefusedError
from loopwright.ports import OnPart
from loopwright.serve.lease import LEASE
from loopwright.types import GenerateRequest, Generation

BEAT_SECONDS = 1.0
"""How often a call without new tokens is told the held seconds: a caller's limit is exact to about this."""
MANAGING = ("/pause", "/resume", "/is_paused", "/weights", PROBE, LEASE)


class DoorSampler:
    """Samples with the run's engines for callers outside. It ends a call when the caller's seconds are used up."""

    def __init__(self, controller: RolloutController) -> None:
        self._controller = controller
        self._client = TimedClient(controller, controller.held_seconds)
        self._running: Counter[str] = Counter()

    @property
    def version(self) -> int:
        return self._controller.version

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        name = _name(request.id or secrets.token_hex(8))
        self._running[name] += 1
        try:
            return await self._client.generate(replace(request, id=name), on_part)
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]

    async def abort(self, request_id: str) -> None:
        """End a request that came through this door. Others are ignored."""
        if (name := _name(request_id)) in self._running:
            await self._controller.abort(name)


def _name(request_id: str) -> str:
    """The request's name within the run. What comes before its last slash names a session, which stays with one engine.
    A caller that names no session has one for each request."""
    return f"{DOOR}{request_id}" if "/" in request_id else f"{DOOR}{request_id}/"


def door_app(controller: RolloutController, card: ModelCard, *, beat_seconds: float = BEAT_SECONDS) -> Starlette:
    """The ASGI app. It must be served behind a `Guard`."""
    held: Callable[[], float] = controller.held_seconds
    beat = Beat(beat_seconds, lambda: state_to_json(controller.version, held))
    methods = ["GET", "POST", "DELETE"]
    return app_of(
        [
            *generating_routes(DoorSampler(controller), card, beat, held),
            *(Route(path, _refuse, methods=methods) for path in MANAGING),
        ]
    )


async def _refuse(request: Request) -> Response:
    raise RefusedError(
        f"{request.url.path} is not for callers of a run's door: its weights and pauses belong to the run",
        remedy="sample here; pause, resume and load weights on engines of your own",
        status=403,
    )
