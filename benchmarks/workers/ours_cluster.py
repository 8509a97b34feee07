"""Calls and rollouts through a router to actors, and calls from actors through a run's door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workers.cluster_parts import ScriptedRollouts, door_caller, scripted_rollouts
from benchmarks.workers.port import Port
from loopwright.config.roles import Role, RoleKind
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.door import door_app
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.worker import embedded
from loopwright.serve.keys import new_key
from loopwright.serve.listen import listening
from loopwright.testing import ScriptedEngine
from loopwright.types import RolloutKey, RolloutRequest, Sampling, Split, Task

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.crew import Crew

ANSWER = list(range(16))
DOOR_ACTORS = 2


async def measure(cluster: Cluster, spec: dict[str, Any]) -> dict[str, Any]:
    """One round."""
    part = partial(scripted_rollouts, spec["tokens"])
    local = ScriptedRollouts(spec["tokens"])
    answer: dict[str, Any] = {"rate": {}, "driver_us": {}}
    answer["local_call"] = await _calls(partial(local.same, 7), spec["calls"])
    answer["bare_call"] = await _bare_calls(spec["calls"])
    for actors in spec["actors"]:
        async with cluster.crew(_role(actors), part, "scripted rollouts") as crew:
            if actors == 1:
                answer["actor_call"] = await _calls(partial(crew.work, "same", 7), spec["calls"])
            rate, cpu = await _rollouts(crew, spec["rollouts"], spec["in_flight"])
            answer["rate"][str(actors)], answer["driver_us"][str(actors)] = rate, cpu
    answer["door_rate"], answer["door_us"] = await _door(cluster, spec["door_calls"], spec["in_flight"])
    return answer


def _role(actors: int) -> Role:
    return Role(RoleKind.LOOPS, f"bench-{actors}", actors, cpus=0.05)


async def _calls(call: Callable[[], Awaitable[Any]], count: int) -> list[float]:
    """The seconds of each call, one after the other."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - started)
    return taken


async def _bare_calls(count: int) -> list[float]:
    """The limit: an actor of Ray's own, without anything of ours."""
    import ray

    class Bare:
        async def same(self, value: int) -> int:
            return value

    actor = ray.remote(Bare).options(num_cpus=0.05).remote()
    await actor.same.remote(7)
    try:
        return await _calls(lambda: actor.same.remote(7), count)
    finally:
        ray.kill(actor)


async def _rollouts(crew: Crew, count: int, in_flight: int) -> tuple[float, float]:
    """Rollouts per second, and the CPU microseconds of this process for each."""
    task = Task.ask("task", "What is 3+4?", truth=7)
    draws: Iterator[int] = iter(range(count))

    async def work() -> None:
        for draw in draws:
            request = RolloutRequest(Split.TRAIN, RolloutKey("bench", draw, 0), task, Sampling(), 60.0)
            await crew.work("run", request, session=request.group)

    started, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    return count / (time.perf_counter() - started), 1e6 * (time.process_time() - cpu) / count


async def _door(cluster: Cluster, count: int, in_flight: int) -> tuple[float, float]:
    """Calls per second through the door, and the CPU microseconds of this process for each."""
    key = new_key()
    async with RolloutController.open([embedded(ScriptedEngine([ANSWER]))]) as controller:
        app = door_app(controller, ModelCard("scripted", 4096, computes=False))
        async with listening(app, host=cluster.address, port=0, key=key) as port:
            opening = partial(door_caller, f"http://{cluster.address}:{port}", key)
            async with cluster.crew(_role(DOOR_ACTORS), opening, "callers of the door") as crew:
                share = count // DOOR_ACTORS
                started, cpu = time.perf_counter(), time.process_time()
                await crew.everyone("ask", share, in_flight // DOOR_ACTORS)
                seconds, used = time.perf_counter() - started, time.process_time() - cpu
    made = share * DOOR_ACTORS
    return made / seconds, 1e6 * used / made


async def main(port: Port) -> None:
    from loopwright.cluster.opening import open_cluster
    from loopwright.config.placement import ClusterConfig

    folder = Path(port.spec["folder"])
    async with open_cluster(ClusterConfig(num_cpus=4), folder / "actors") as cluster:
        port.ready("loopwright", "ray")
        while (watch := await asyncio.to_thread(port.next_round)) is not None:
            answer = await measure(cluster, port.spec)
            port.answer(watch.stop(), **answer)


if __name__ == "__main__":
    asyncio.run(main(Port()))
