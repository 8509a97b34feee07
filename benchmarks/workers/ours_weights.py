"""Loopwright's weight updates: the learner's parameters to an engine in this process, to `loopwright engine` by a file
and by broadcast over loopback, and to an engine on an actor through Ray's object store. Every update is proven; all
weights change before each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port

HOST = "127.0.0.1"


@dataclass(slots=True)
class Parts:
    """The seconds of each part of an update."""

    seconds: dict[str, float] = field(default_factory=dict)

    async def timed(self, part: str, work: Awaitable[Any]) -> Any:
        begun = time.perf_counter()
        try:
            return await work
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - begun


class TimedLearner:
    """A learner that tells how long the weights took to write, and what the proof asked it."""

    def __init__(self, learner: Any, parts: Parts) -> None:
        self._learner, self._parts = learner, parts

    async def publish(self, sink: Any) -> None:
        await self._parts.timed("write", self._learner.publish(sink))

    async def logprobs(self, ids: Any, temperature: float = 1.0) -> Any:
        return await self._learner.logprobs(ids, temperature)


class TimedEngine:
    """An engine that is proven after each update."""

    def __init__(self, name: str, engine: Any, parts: Parts) -> None:
        self._name, self._engine, self._parts = name, engine, parts
        self.proof: Any = None

    async def load(self, version: int, *update: Any) -> None:
        await self._parts.timed("load", self._engine.load(version, *update))
        await self._parts.timed("proof", self.proof(self._name, self._engine, version))


Publish = Callable[[int], Awaitable[Any]]


@asynccontextmanager
async def opened(spec: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[dict[str, dict[str, float]]]]]:
    """Gives a function that makes all updates of a round, and tells the seconds of their parts."""
    from loopwright.engines.http.process import engine_command, engine_process
    from loopwright.engines.torch.engine import TorchEngine
    from loopwright.learn.learner import TorchLearner
    from loopwright.models.compute import ComputeThread
    from loopwright.models.load import load_model
    from loopwright.models.runtime import configure
    from loopwright.weights.broadcast import BroadcastEngine, Broadcasting
    from loopwright.weights.folder import weights_folder
    from loopwright.weights.in_process import SharedWeights
    from loopwright.weights.proof import WeightProof
    from loopwright.weights.shared_memory import SharedMemoryWeights

    folder = Path(spec["folder"])
    async with AsyncExitStack() as stack:
        compute = stack.enter_context(ComputeThread())
        await compute.run(configure, threads=spec["threads"], deterministic=False)
        loaded = await compute.run(load_model, spec["model"], cache=folder)
        learner = await compute.run(TorchLearner, loaded, _recipe(), compute)
        here = await stack.enter_async_context(TorchEngine(loaded, compute))
        command = engine_command(spec["model"], threads=spec["threads"], max_batch=64)
        started = engine_process(command, env=os.environ, log=folder / "engine.log")
        there = (await stack.enter_async_context(started)).engine
        sent = BroadcastEngine(there, Broadcasting(HOST))
        stored = await stack.enter_async_context(_on_actor(spec, folder))
        engines = {"in_place": here, "file": there, "broadcast": sent, "object_store": stored}
        parts = {name: Parts() for name in engines}
        publish: dict[str, Publish] = {}
        for name, engine in engines.items():
            own = TimedLearner(learner, parts[name])
            timed = TimedEngine(name, engine, parts[name])
            timed.proof = proof = WeightProof(own, loaded.model.config.vocab_size)  # type: ignore[arg-type]
            if name == "in_place":
                publish[name] = SharedWeights(timed, proof).publish  # type: ignore[arg-type]
            else:
                run = folder / name
                run.mkdir()
                weights = stack.enter_context(weights_folder(run))
                publish[name] = SharedMemoryWeights(own, timed, weights, proof).publish  # type: ignore[arg-type]

        async def update(version: int) -> dict[str, dict[str, float]]:
            for name, one in publish.items():
                await compute.run(_change, loaded.model)
                parts[name].seconds.clear()
                await parts[name].timed("seconds", one(version))
            return {name: dict(one.seconds) for name, one in parts.items()}

        yield update


@asynccontextmanager
async def _on_actor(spec: dict[str, Any], folder: Path) -> AsyncIterator[Any]:
    """An engine on an actor. It is on this node, and gets its weights as one on another node would, but for the copy
    from node to node."""
    from functools import partial

    from loopwright.build.hosted_engine import hosted_engine
    from loopwright.build.serving import ServedModel
    from loopwright.cluster.opening import open_cluster
    from loopwright.config.placement import ClusterConfig
    from loopwright.config.roles import Role, RoleKind
    from loopwright.engines.http.client import HttpEngine
    from loopwright.serve.keys import new_key

    served = ServedModel(
        spec["model"], folder, dtype="float32", max_context=None, threads=spec["threads"], max_batch=64, cache_tokens=0
    )
    role, key = Role(RoleKind.ENGINES, "torch", 1, 1.0), new_key()
    async with open_cluster(ClusterConfig(num_cpus=1), folder / "actors") as cluster:
        from loopwright.cluster.engine import ObjectStoreEngine, StoredWeights
        from loopwright.cluster.node import this_node

        opening = partial(hosted_engine, served, key, this_node())
        async with (
            cluster.launch(role, 0, opening, "the engine") as host,
            HttpEngine.connect(await host.call("url"), key) as connected,
        ):
            yield ObjectStoreEngine(connected, host, StoredWeights())


def _recipe() -> Any:
    """Any: nothing is trained."""
    from functools import partial

    from loopwright.core.advantage import ADVANTAGES
    from loopwright.learn.losses import ppo_clip
    from loopwright.learn.recipe import Recipe

    loss = partial(ppo_clip, clip_low=0.2, clip_high=0.2)
    return Recipe(ADVANTAGES["grpo"], loss, temperature=1.0, steps=1, constant_length=1)


def _change(model: Any) -> None:
    """Move all weights a little, as a train step does."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0001)


async def main(port: Port) -> None:
    from loopwright.models.openmp import wait_without_spinning

    wait_without_spinning(os.environ)
    async with opened(port.spec) as update:
        port.ready("loopwright", "torch")
        for version, watch in enumerate(port.rounds(), 1):
            updates = await update(version)
            port.answer(watch.stop(), updates=updates)


if __name__ == "__main__":
    asyncio.run(main(Port()))
