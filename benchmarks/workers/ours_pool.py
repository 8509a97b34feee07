"""Requests through the controller to scripted engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.workers.pool_round import serve
from benchmarks.workers.port import Port
from loopwright.engines.controller import RolloutController
from loopwright.engines.worker import embedded
from loopwright.ports import ModelClient
from loopwright.testing import ScriptedEngine


@asynccontextmanager
async def controlled(engines: list[ScriptedEngine]) -> AsyncIterator[ModelClient]:
    async with RolloutController.open([embedded(engine) for engine in engines]) as controller:
        yield controller


if __name__ == "__main__":
    serve(Port(), controlled)
