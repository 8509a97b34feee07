"""The contracts of engines, asked of the SGLang adapter over a fake of its server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engine_contract import EngineContract, Update
from engine_weights_contract import ReferenceModel, WeightsContract

from loopwright.engines.sglang.engine import SglangEngine
from loopwright.engines.version_labels import VersionLabels
from loopwright.testing.sglang_server import serve_sglang
from loopwright.types import WeightFile


@pytest.fixture
def initial(tiny_llama_folder: Path, tmp_path: Path) -> WeightFile:
    return ReferenceModel(tiny_llama_folder).write(tmp_path / "initial")


@pytest.fixture
async def engine(tiny_llama_folder: Path, initial: WeightFile) -> AsyncIterator[SglangEngine]:
    """Attached as by a run, with the model's own weights as version 0."""
    async with (
        serve_sglang(tiny_llama_folder) as server,
        SglangEngine.connect(server.url, None, labels=VersionLabels("run", 0)) as engine,
    ):
        await engine.load(0, initial)
        yield engine


class TestSglang(EngineContract):
    @pytest.fixture
    def update(self, initial: WeightFile) -> Update:
        return lambda version: initial


class TestSglangWeights(WeightsContract):
    @pytest.fixture
    def reference(self, tiny_llama_folder: Path) -> ReferenceModel:
        return ReferenceModel(tiny_llama_folder)
