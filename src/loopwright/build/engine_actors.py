"""Engines on actors, as the driver sees them: each is one more way to start an engine of the pool.

Ray places an actor and says when it is lost; the pool starts it again, within its budget. One that has no room, because
its node is gone, waits for room inside of its start, which costs no budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from loopwright.build import parts
from loopwright.build.cluster import engine_role
from loopwright.build.devices import engine_devices
from loopwright.build.hosted_engine import hosted_engine, hosted_vllm, run_mark
from loopwright.build.sampling import LocalSamplingParts
from loopwright.build.servers import by_broadcast
from loopwright.build.serving import ServedModel
from loopwright.config import TorchEngineConfig
from loopwright.config.extras import require
from loopwright.config.roles import Role
from loopwright.config.transport import ON_THIS_NODE, SENT_ELSEWHERE, STORED_ELSEWHERE
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Launch, Worker
from loopwright.errors import EngineLostError, LoopwrightError, WorkerLostError
from loopwright.ports import StreamingEngine
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.keys import new_key
from loopwright.types import EngineCapacity

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.engine import StoredWeights
    from loopwright.cluster.host import Opening
    from loopwright.cluster.remote_host import RemoteHost
    from loopwright.engines.vllm.process import VllmServer

log = logging.getLogger("loopwright")

LAST_SECONDS = 2.0
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
        device=engine_devices(sampling.config)[0],
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
    async with _started(actors, number, partial(hosted_engine, served, key, driver)) as host:
        url = await host.call("url")
        way = ON_THIS_NODE if host.started.node == driver else STORED_ELSEWHERE
        log.info("weights reach %s at %s by %s", host.name, url, way)
        async with HttpEngine.connect(url, key) as connected:
            engine: StreamingEngine = connected
            if way is STORED_ELSEWHERE:
                engine = ObjectStoreEngine(connected, host, weights)
            yield Worker(engine, host.died, capacity)


def vllm_actors(server: VllmServer, labels: VersionLabels, actors: EngineActors, folder: RunFolder) -> list[Launch]:
    """A vLLM server on the node of each of the actors, started and guarded there."""
    run = run_mark(folder.path)
    return [partial(vllm_actor, actors, number, server, labels, run) for number in range(actors.role.count)]


@asynccontextmanager
async def vllm_actor(
    actors: EngineActors, number: int, server: VllmServer, labels: VersionLabels, run: str
) -> AsyncIterator[Worker]:
    """Start a vLLM server on the node of an actor, and connect to it. Elsewhere than on the driver's node it gets new
    weights by broadcast."""
    from loopwright.cluster.node import this_node
    from loopwright.engines.vllm.engine import VllmEngine

    driver = this_node()
    cpus = max(1, int(actors.role.cpus))
    opening = partial(hosted_vllm, server, driver, f"{run}-{number}", number, cpus)
    async with _started(actors, number, opening) as host:
        url = await host.call("url")
        way = ON_THIS_NODE if host.started.node == driver else SENT_ELSEWHERE
        log.info("weights reach %s at %s by %s", host.name, url, way)
        async with (
            VllmEngine.connect(url, None, labels=labels, sleeps=server.sleeps) as connected,
            last_words(host, "ended") as died,
        ):
            engine = connected if way is ON_THIS_NODE else by_broadcast(url, connected)
            yield Worker(engine, died, replace(await connected.capacity(), sequences=server.max_batch))


@asynccontextmanager
async def _started(actors: EngineActors, number: int, opening: Opening) -> AsyncIterator[RemoteHost]:
    """The actor of an engine. What keeps it from starting, such as a port or memory that is taken, is told as of an
    engine in a process: the pool tries again."""
    async with AsyncExitStack() as stack:
        try:
            host = await stack.enter_async_context(actors.cluster.launch(actors.role, number, opening, WHAT))
        except LoopwrightError:
            raise
        except Exception as error:  # whatever the libraries on the actor raise
            raise EngineLostError(
                f"{actors.role.actor_name(number)} did not start: {type(error).__name__}: {error}",
                remedy="see its log in the run folder",
            ) from error
        yield host


@asynccontextmanager
async def last_words(host: RemoteHost, method: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """What says when the part on an actor has ended, which may be before the actor does. `method` of the part waits for
    that."""
    ended = asyncio.ensure_future(host.call(method))

    async def died() -> str:
        try:
            return str(await asyncio.shield(ended))
        except WorkerLostError as lost:
            return lost.message

    try:
        yield died
    finally:
        ended.cancel()
        # An actor that does not answer any more is killed next, and then this ends too.
        await asyncio.wait((ended,), timeout=LAST_SECONDS)
