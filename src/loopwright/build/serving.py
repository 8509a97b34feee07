"""Serves a model's engine to other processes. torch is imported when an engine is opened: a gateway has none."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.core.redaction import Redactor
from loopwright.errors import EngineLostError
from loopwright.track.redacting import redacting

if TYPE_CHECKING:
    from loopwright.engines.torch.engine import TorchEngine
    from loopwright.models.load import LoadedModel

log = logging.getLogger("loopwright")

EXIT_CODE = 1


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Which model is served, and how it is computed."""

    model: str
    cache: Path
    dtype: str
    max_context: int | None
    threads: int | None
    max_batch: int
    cache_tokens: int
    native: bool = True
    device: str = "auto"

    @property
    def found(self) -> str:
        """The model's path as other processes on this machine can use it, or its name."""
        return str(Path(self.model).resolve()) if Path(self.model).exists() else self.model


@asynccontextmanager
async def opened_engine(served: ServedModel) -> AsyncIterator[tuple[TorchEngine, LoadedModel]]:
    """The embedded engine in this process, with weights of version 0, and its model."""
    from loopwright.engines.torch.engine import TorchEngine
    from loopwright.models.compute import ComputeThread
    from loopwright.models.device import chosen_device
    from loopwright.models.load import load_model
    from loopwright.models.runtime import configure

    async with AsyncExitStack() as stack:
        compute = stack.enter_context(ComputeThread())
        await compute.run(configure, threads=served.threads, deterministic=False)
        loaded = await compute.run(
            load_model,
            served.model,
            cache=served.cache,
            dtype=served.dtype,
            max_context=served.max_context,
            device=chosen_device(served.device, setting="rollout.engine.device"),
            native=served.native,
        )
        engine = TorchEngine(loaded, compute, max_batch=served.max_batch, cache_tokens=served.cache_tokens)
        yield await stack.enter_async_context(engine), loaded


def stay(lost: EngineLostError) -> None:
    """For a process that does more than serve an engine: calls of a lost engine say what is wrong."""


def end_process(lost: EngineLostError) -> None:
    """For a process that only serves an engine: another one can be started in its place.

    It ends at once, before a call is answered. An answer that breaks off goes on from its tokens, and an error would
    be the end of it. Nothing on a broken device can be closed in order."""
    log.critical("the process ends: %s", lost.message)
    os._exit(EXIT_CODE)


@asynccontextmanager
async def serve_engine(
    served: ServedModel,
    *,
    host: str,
    port: int,
    key: str | None,
    on_loss: Callable[[EngineLostError], object] = stay,
) -> AsyncIterator[int]:
    """Serve the embedded engine, and give the port. The weights have version 0 until others are loaded. `on_loss` is
    called if its device breaks."""
    async with engine_server(served, host=host, port=port, key=key, on_loss=on_loss) as (_, bound):
        yield bound


@asynccontextmanager
async def engine_server(
    served: ServedModel,
    *,
    host: str,
    port: int,
    key: str | None,
    on_loss: Callable[[EngineLostError], object] = stay,
) -> AsyncIterator[tuple[TorchEngine, int]]:
    """The same, and the engine itself."""
    from loopwright.engines.http.model_card import ModelCard
    from loopwright.engines.http.server import engine_app
    from loopwright.serve.listen import check_bind, listening

    check_bind(host, key)
    with redacting(Redactor((key or "",))):
        async with opened_engine(served) as (engine, loaded):
            card = ModelCard(served.found, loaded.max_context)

            async def watch() -> None:
                on_loss(await engine.died())

            watching = asyncio.create_task(watch(), name="device of the engine")
            try:
                async with listening(engine_app(engine, card=card), host=host, port=port, key=key) as bound:
                    yield engine, bound
            finally:
                watching.cancel()
                await asyncio.wait((watching,))
