"""The requests of `pool`, the same for both of its sides: groups of 8 rollouts of 2 calls, so many at a time."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

from benchmarks.workers.port import Port
from loopwright.ports import ModelClient
from loopwright.testing import ScriptedEngine
from loopwright.types import GenerateRequest, Sampling

MEMBERS, CALLS = 8, 2
PROMPT = tuple(range(64))
STEPS = 4
"""How many turns of the event loop an answer takes, so that calls overlap."""

Opened = Callable[[list[ScriptedEngine]], AbstractAsyncContextManager[ModelClient]]


def serve(port: Port, opened: Opened) -> None:
    """Measure each number of engines. `opened` gives what the requests are sent to."""
    # The engines keep all their requests, which the collector would scan.
    gc.disable()
    spec = port.spec
    port.ready("loopwright")
    for watch in port.rounds():
        cases = []
        for engines in spec["engines"]:
            cases.append(asyncio.run(cpu_seconds(opened, engines, spec["requests"], spec["in_flight"])))
            gc.collect()
        port.answer(watch.stop(), cases=cases)


async def cpu_seconds(opened: Opened, engines: int, requests: int, in_flight: int) -> float:
    rollouts = iter(range(requests // CALLS))
    async with opened([ScriptedEngine([[7]], steps=STEPS) for _ in range(engines)]) as client:
        started = time.process_time()
        async with asyncio.TaskGroup() as clients:
            for _ in range(in_flight):
                clients.create_task(_ask(client, rollouts))
        return time.process_time() - started


async def _ask(client: ModelClient, rollouts: Iterator[int]) -> None:
    for rollout in rollouts:
        group, member = divmod(rollout, MEMBERS)
        name = f"tasks/{group:06d}"
        for call in range(CALLS):
            request = GenerateRequest(f"{name}/{member:02d}/0/{call}", PROMPT, Sampling(), affinity=f"train/{name}")
            await client.generate(request)
