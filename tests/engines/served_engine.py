"""An engine behind a server in this process, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.server import engine_app
from loopwright.ports import StreamingEngine
from loopwright.serve.listen import listening

KEY = "a-key-for-tests"


@asynccontextmanager
async def served(engine: StreamingEngine, *, silence_seconds: float = 20.0) -> AsyncIterator[HttpEngine]:
    app = engine_app(engine, beat_seconds=silence_seconds / 4)
    async with (
        listening(app, key=KEY) as port,
        HttpEngine.connect(f"http://127.0.0.1:{port}", KEY, silence_seconds=silence_seconds) as client,
    ):
        yield client
