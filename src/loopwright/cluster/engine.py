"""New weights for engines on other nodes, through Ray's object store.

The bytes of a weight file are put there once per version, and Ray copies them to each node once. Engines read them
where they lie, and check them as they check a file (W3). Only the newest version is kept: an engine that needs an older
one again gets it from the file, which stays until a newer version is proven.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

from loopwright.cluster.remote_host import RemoteHost
from loopwright.errors import EngineLostError, WeightsError, WorkerLostError
from loopwright.models.weight_files import WRITE_AGAIN, mapped
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import (
    IN_PLACE,
    GenerateRequest,
    Generation,
    PauseMode,
    ProbeAnswer,
    WeightFile,
    WeightUpdate,
)

LOAD = "load"
"""The method of the part on an actor that loads bytes."""


class StoredWeights:
    """The weights of one version in the object store, for all engines of a run."""

    def __init__(self) -> None:
        self._file: WeightFile | None = None
        self._reference: Any = None
        self._putting = asyncio.Lock()

    async def reference(self, file: WeightFile) -> Any:
        """Where the bytes of `file` are in the store. Raises WeightsError if they cannot be put there."""
        async with self._putting:
            if self._file != file:
                # Freed first: the store then needs room for one version. Engines that still read it keep it.
                self._file = self._reference = None
                self._reference = await asyncio.to_thread(_put, file)
                self._file = file
            return self._reference


class ObjectStoreEngine:
    """A `StreamingEngine` on the actor `host`, which gets the bytes of weight files through the object store. All else
    is passed on to `engine`, the same one over HTTP."""

    def __init__(self, engine: StreamingEngine, host: RemoteHost, weights: StoredWeights) -> None:
        self._engine = engine
        self._host = host
        self._weights = weights
        self._version = engine.version

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        return await self._engine.generate(request, on_part)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._engine.pause(mode)

    async def resume(self) -> None:
        await self._engine.resume()

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        return await self._engine.probe(request)

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        """Raises EngineLostError if the actor is lost, and WeightsError if the weights cannot be used: then the engine
        has the weights that it had."""
        if isinstance(update, WeightFile):
            reference = await self._weights.reference(update)
            try:
                await self._host.call(LOAD, version, update, reference)
            except WorkerLostError as lost:
                raise EngineLostError(lost.message, remedy=lost.remedy) from lost
        else:
            await self._engine.load(version, update)
        self._version = version


def _put(file: WeightFile) -> Any:
    try:
        # As an array: bytes would be copied by every reader.
        return ray.put(mapped(file).numpy())
    except (OSError, ValueError) as error:
        raise WeightsError(f"the weights in {file.path} cannot be sent: {error}", remedy=WRITE_AGAIN) from error
    except RayError as error:
        raise WeightsError(
            f"the weights do not fit into Ray's object store: {error}",
            remedy="give the nodes of the cluster more object_store_memory, or free some",
        ) from error
