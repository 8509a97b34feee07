"""Both sides of the pool benchmark send the same requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.workers.ours_pool import controlled
from benchmarks.workers.pool_round import Opened, cpu_seconds
from benchmarks.workers.straight_pool import straight
from loopwright.ports import ModelClient
from loopwright.testing import ScriptedEngine

REQUESTS, IN_FLIGHT = 64, 16


@pytest.mark.parametrize("opened", [controlled, straight])
@pytest.mark.parametrize("engines", [1, 4])
async def test_every_request_is_sent_once_and_all_engines_get_some(opened: Opened, engines: int) -> None:
    made: list[ScriptedEngine] = []

    @asynccontextmanager
    async def watched(given: list[ScriptedEngine]) -> AsyncIterator[ModelClient]:
        made.extend(given)
        async with opened(given) as client:
            yield client

    assert await cpu_seconds(watched, engines, REQUESTS, IN_FLIGHT) >= 0
    ids = sorted(request.id for engine in made for request in engine.requests)
    assert ids == sorted(f"tasks/{n // 8:06d}/{n % 8:02d}/0/{call}" for n in range(REQUESTS // 2) for call in (0, 1))
    assert len(made) == engines
    assert all(engine.requests for engine in made)
