"""A disaggregated run in virtual time: a scripted engine, a learner that sleeps, and what was trained when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from house import House, echo, task_set

from loopwright.core.staleness import horizon
from loopwright.ports import StalePolicy
from loopwright.produce import AgentLoopManager, Batch
from loopwright.testing import ScriptedEngine
from loopwright.types import GenerateRequest, PauseMode, ProduceKind, Stale


def by_key(seconds: dict[str, float], otherwise: float = 1.0) -> Any:
    """How long answers take, by the beginning of the request's id: `math/000001`."""

    def of(request: GenerateRequest) -> float:
        fitting = [name for name in seconds if request.id.startswith(name)]
        return seconds[max(fitting, key=len)] if fitting else otherwise

    return of


def async_house(
    *,
    staleness: int = 1,
    sync_interval: int = 1,
    stale: Stale = Stale.MASK,
    max_expiries: int = 2,
    seconds: Any = None,
    engine: ScriptedEngine | None = None,
    more: dict[str, Any] | None = None,
    **changes: Any,
) -> House:
    """A house that makes groups ahead; answers take a second unless told otherwise."""
    reach = horizon(staleness, sync_interval)
    changes.setdefault("task_sets", [task_set(resumable=True)])
    return House(
        engine=engine or ScriptedEngine(echo, seconds=seconds or (lambda _: 1.0)),
        policy=StalePolicy(stale, reach, max_expiries),
        more={"kind": ProduceKind.ASYNC, "horizon": reach, **(more or {})},
        **changes,
    )


@asynccontextmanager
async def producing(manager: AgentLoopManager, version: int = 0) -> AsyncIterator[None]:
    """A manager that produces."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.produce_loop())
        await manager.continue_(version)
        yield
        await manager.shutdown()


def now() -> float:
    return asyncio.get_running_loop().time()


async def take_turns(house: House, manager: AgentLoopManager, steps: int) -> list[Batch]:
    """Train as a colocated trainer does, at once and so many steps; what was taken."""
    batches = []
    for step in range(1, steps + 1):
        batch = await manager.produce_batch(step, step - 1)
        await manager.consume(batch.groups, step)
        batches.append(batch)
        await house.engine.pause()
        await house.engine.load(step)
        await house.engine.resume()
    await manager.shutdown()
    return batches


@dataclass
class Learning:
    """Trains as a disaggregated trainer does, in `seconds` a step, and writes down what it took and when it synced."""

    house: House
    manager: AgentLoopManager
    seconds: float = 1.0
    sync_interval: int = 1
    in_flight: PauseMode = PauseMode.ABORT
    version: int = 0
    batches: list[Batch] = field(default_factory=list)
    syncs: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)

    async def run(self, steps: int) -> None:
        """Train so many steps more, production running beside."""
        producing = asyncio.create_task(self.manager.produce_loop())
        try:
            await self.manager.continue_(self.version)
            for _ in range(steps):
                await self.step()
        finally:
            await self.manager.shutdown()
            await asyncio.wait({producing})
        await producing

    async def step(self) -> None:
        step = self.version + 1
        while (batch := await self.manager.take(step)).is_empty:
            self.empty.append(step)
            await self.sync()
        await asyncio.sleep(self.seconds)
        await self.manager.consume(batch.groups, step)
        self.batches.append(batch)
        self.version = step
        if step % self.sync_interval == 0:
            await self.sync()

    async def sync(self) -> None:
        self.syncs.append(self.version)
        await self.manager.pause(self.in_flight)
        await self.house.engine.load(self.version)
        await self.manager.continue_(self.version)
