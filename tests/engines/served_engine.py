"""An engine behind a server in this process, or behind a run's door, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loopwright.engines.controller import RolloutController
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.door import door_app
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.http.server import engine_app
from loopwright.ports import StreamingEngine
from loopwright.serve.listen import listening

KEY = "a-key-for-tests"
CARD = ModelCard("a-model", 1024)


@asynccontextmanager
async def served(engine: StreamingEngine, *, silence_seconds: float = 20.0) -> AsyncIterator[HttpEngine]:
    app = engine_app(engine, beat_seconds=silence_seconds / 4)
    async with (
        listening(app, key=KEY) as port,
        HttpEngine.connect(f"http://127.0.0.1:{port}", KEY, silence_seconds=silence_seconds) as client,
    ):
        yield client


@asynccontextmanager
async def behind_door(controller: RolloutController, *, beat_seconds: float = 0.05) -> AsyncIterator[HttpEngine]:
    async with (
        listening(door_app(controller, CARD, beat_seconds=beat_seconds), key=KEY) as port,
        HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as client,
    ):
        yield client
