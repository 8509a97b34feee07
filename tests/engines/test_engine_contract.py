"""The contract of engines, asked of the adapters that run in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_contract import LONG, KeepingContract, Update
from engine_weights_contract import ReferenceModel, WeightsContract
from served_engine import behind_door, served

from loopwright.engines.controller import RolloutController
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.restartable import RestartableEngine
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.worker import embedded
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.ports import Engine
from loopwright.testing import ScriptedEngine, UnhurriedForward
from loopwright.types import IN_PLACE


class ThroughDoor:
    """Samples through the door of a controller. What the door refuses, the run does itself."""

    def __init__(self, client: HttpEngine, controller: RolloutController) -> None:
        self.generate = client.generate
        self.abort = client.abort
        self.pause = controller.pause
        self.resume = controller.resume
        self.load = controller.load
        self._client = client

    @property
    def version(self) -> int:
        return self._client.version


ENGINES = ("torch", "scripted", "restartable", "http", "controller", "controller over http", "door of a controller")


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    if request.param in ("scripted", "restartable"):
        scripted = ScriptedEngine([tuple(range(LONG))], steps=3)
        yield scripted if request.param == "scripted" else RestartableEngine(scripted)
        return
    model: LoadedModel = request.getfixturevalue("loaded")
    loaded = replace(model, forward=UnhurriedForward(model.forward))
    async with AsyncExitStack() as stack:
        compute = stack.enter_context(ComputeThread())
        engine: Any = await stack.enter_async_context(TorchEngine(loaded, compute))
        if "http" in request.param:
            engine = await stack.enter_async_context(served(engine))
        if "controller" in request.param:
            engine = await stack.enter_async_context(RolloutController.open([embedded(engine)]))
        if "door" in request.param:
            engine = ThroughDoor(await stack.enter_async_context(behind_door(engine)), engine)
        yield engine


class TestEngines(KeepingContract):
    @pytest.fixture
    def update(self) -> Update:
        return lambda version: IN_PLACE


class TestWeights(WeightsContract):
    @pytest.fixture
    def reference(self, tiny_llama_folder: Path) -> ReferenceModel:
        return ReferenceModel(tiny_llama_folder)

    @pytest.fixture(params=["torch", "http", "controller"])
    async def engine(self, request: pytest.FixtureRequest, loaded: LoadedModel) -> AsyncIterator[Engine]:
        with ComputeThread() as compute:
            async with AsyncExitStack() as stack:
                engine: Any = await stack.enter_async_context(TorchEngine(loaded, compute, cache_tokens=4096))
                if request.param == "http":
                    engine = await stack.enter_async_context(served(engine))
                if request.param == "controller":
                    engine = await stack.enter_async_context(RolloutController.open([embedded(engine)]))
                yield engine
