"""Engines on actors, as the driver sees them: each is one more way to start an engine of the pool.

Ray places an actor and says when it is lost; the pool starts it again, within its budget. One that has no room, because
its node is gone, waits for room inside of its start, which costs no budget.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from loopwright.build import parts
from loopwright.build.cluster import engine_role
from loopwright.build.hosted_engine import hosted_engine
from loopwright.build.sampling import LocalSamplingParts
from loopwright.build.serving import ServedModel
from loopwright.config import TorchEngineConfig
from loopwright.config.extras import require
from loopwright.config.roles import Role
from loopwright.config.transport import ON_THIS_NODE, STORED_ELSEWHERE
from loopwright.engines.worker import Launch, Worker
from loopwright.ports import StreamingEngine
from loopwright.serve.keys import new_key
from loopwright.types import EngineCapacity

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.engine import StoredWeights

log = logging.getLogger("loopwright")

WHAT = "the engine"
"""What an actor of an engine holds, for errors."""


@dataclass(frozen=True, slots=True)
class EngineActors:
    """The actors of a run's engines."""

    cluster: Cluster
    role: Role


def engine_actors(sampling: LocalSamplingParts) -> EngineActors | None:
    """The actors for the engines, if the config has them there."""
    role = engine_role(sampling.config)
    if role is None:
        return None
    if sampling.cluster is None:
        raise RuntimeError("the config has engines on actors, and no cluster is open")
    return EngineActors(sampling.cluster, role)


def torch_actors(sampling: LocalSamplingParts, engine: TorchEngineConfig, actors: EngineActors) -> list[Launch]:
    """Our engine, on each of the actors."""
    require("serve")
    from loopwright.cluster.engine import StoredWeights

    model, weights = sampling.config.model, StoredWeights()
    served = ServedModel(
        parts.model_source(sampling.loaded, model.path),
        sampling.cache,
        dtype=model.dtype,
        max_context=model.max_context,
        threads=engine.threads or max(1, int(engine.num_cpus_per_actor)),
        max_batch=engine.max_batch,
        cache_tokens=engine.cache_tokens,
        native=engine.native,
    )
    return [
        partial(torch_actor, actors, number, served, weights, sampling.capacity) for number in range(actors.role.count)
    ]


@asynccontextmanager
async def torch_actor(
    actors: EngineActors, number: int, served: ServedModel, weights: StoredWeights, capacity: EngineCapacity
) -> AsyncIterator[Worker]:
    """Start our engine on an actor with a new key that only both processes know, and connect to it. On other nodes than
    the driver's it gets new weights through the object store."""
    from loopwright.cluster.engine import ObjectStoreEngine
    from loopwright.cluster.node import this_node
    from loopwright.engines.http.client import HttpEngine

    key, driver = new_key(), this_node()
    async with actors.cluster.launch(actors.role, number, partial(hosted_engine, served, key, driver), WHAT) as host:
        url = await host.call("url")
        way = ON_THIS_NODE if host.started.node == driver else STORED_ELSEWHERE
        log.info("weights reach %s at %s by %s", host.name, url, way)
        async with HttpEngine.connect(url, key) as connected:
            engine: StreamingEngine = connected
            if way is STORED_ELSEWHERE:
                engine = ObjectStoreEngine(connected, host, weights)
            yield Worker(engine, host.died, capacity)
