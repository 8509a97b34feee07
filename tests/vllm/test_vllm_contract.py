"""The contracts of engines, asked of the adapter over a real vLLM server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from engine_contract import EngineContract, Update
from engine_weights_contract import ReferenceModel, WeightsContract
from guarded_vllm import GuardedVllm, guarded_vllm

from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.engine import VllmEngine
from loopwright.models.smollm2 import smollm2_folder
from loopwright.types import WeightFile

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CACHE = Path.home() / ".cache" / "loopwright" / "models"
OPENINGS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedVllm]:
    with guarded_vllm(smollm2_folder(CACHE), tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> WeightFile:
    return ReferenceModel(smollm2_folder(CACHE)).write(tmp_path_factory.mktemp("weights") / "w")


@pytest.fixture
async def engine(server: GuardedVllm, initial: WeightFile) -> AsyncIterator[VllmEngine]:
    """Attached as by a run of its own, with the model's own weights as version 0."""
    labels = VersionLabels(f"contract-{next(OPENINGS)}", 0)
    async with VllmEngine.connect(server.url, None, labels=labels) as engine:
        await engine.load(0, initial)
        yield engine


class TestVllm(EngineContract):
    stop_tokens = tuple(range(49152))

    @pytest.fixture
    def update(self, initial: WeightFile) -> Update:
        return lambda version: initial


class TestVllmWeights(WeightsContract):
    first_token = 300

    @pytest.fixture
    def reference(self) -> ReferenceModel:
        return ReferenceModel(smollm2_folder(CACHE))
