"""Engines on actors, as the actor sees them. It opens what a process of its own would open on this machine, and tells
the driver where it listens."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.build.serving import ServedModel, end_process, engine_server
from loopwright.engines.http.process import START_SECONDS
from loopwright.errors import EngineLostError
from loopwright.models.openmp import wait_without_spinning
from loopwright.types import WeightFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loopwright.engines.torch.engine import TorchEngine
    from loopwright.engines.vllm.process import VllmServer
    from loopwright.serve.child import Child


class HostedEngine:
    """Our engine in the process of an actor. Tokens go over HTTP, which streams them, so that they survive if the actor
    dies."""

    def __init__(self, engine: TorchEngine, url: str) -> None:
        self._engine = engine
        self._url = url

    async def url(self) -> str:
        return self._url

    async def load(self, version: int, file: WeightFile, data: npt.NDArray[np.uint8]) -> None:
        """Load a weight file whose bytes are `data`, which may be in the object store."""
        from loopwright.models.weight_files import WeightBytes

        await self._engine.load(version, WeightBytes(file, data))


@asynccontextmanager
async def hosted_engine(
    served: ServedModel, key: str, driver: str, start_seconds: float = START_SECONDS
) -> AsyncIterator[HostedEngine]:
    """Serve the embedded engine to the process that is on the node `driver`. It listens at any free port of loopback,
    or of this node's address if the driver is on another one."""
    from loopwright.cluster.node import address_for

    # Before torch is imported. A process that the command line starts has done so.
    wait_without_spinning(os.environ)
    host = address_for(driver)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(start_seconds):
                serving = engine_server(served, host=host, port=0, key=key, on_loss=end_process)
                engine, port = await stack.enter_async_context(serving)
        except TimeoutError:
            raise EngineLostError(
                f"the engine was not ready within {start_seconds:g} s", remedy="a large model may need more time"
            ) from None
        yield HostedEngine(engine, f"http://{host}:{port}")


class HostedServer:
    """An inference server on the node of an actor."""

    def __init__(self, guard: Child, url: str) -> None:
        self._guard = guard
        self._url = url

    async def url(self) -> str:
        return self._url

    async def ended(self) -> str:
        """Wait for its end. Returns its last words."""
        return await self._guard.wait()


@asynccontextmanager
async def hosted_vllm(
    server: VllmServer, driver: str, name: str, number: int, cpus: int
) -> AsyncIterator[HostedServer]:
    """Start `server` on this node, and guard it: it ends with this process. It listens on loopback, or on this node's
    private address if the driver, which is on the node `driver`, is elsewhere. What an earlier server of that `name`
    has left on this node is ended first. It gets `cpus` cores."""
    from loopwright.cluster.node import address_for
    from loopwright.engines.vllm.leftovers import sweep
    from loopwright.engines.vllm.process import cores_of, vllm_server

    state = Path(tempfile.gettempdir(), f"loopwright-{os.getuid()}-server-{name}.json")
    await asyncio.to_thread(sweep, state)
    available = sorted(os.sched_getaffinity(0))
    places = max(1, len(available) // cpus)
    here = replace(
        server,
        host=address_for(driver),
        cores=cores_of(number % places, places, available),
        log=_own_output() or state.with_suffix(".log"),
        state=state,
    )
    # Ray kills the children of an actor that it kills.
    async with vllm_server(here, env=os.environ, apart=True) as (guard, url):
        yield HostedServer(guard, url)


def run_mark(run: Path) -> str:
    """A name for the run in this folder, which every start of it has."""
    return hashlib.blake2b(str(run.resolve()).encode(), digest_size=8).hexdigest()


def _own_output() -> Path | None:
    """The file behind stderr: the driver gets what is written there."""
    file = Path(os.readlink("/proc/self/fd/2"))
    return file if file.is_file() else None
