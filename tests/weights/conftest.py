"""A learner that only publishes, and an engine that gets its weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from teacher import Teacher

from loopwright.engines.torch.engine import TorchEngine
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model


@pytest.fixture
def teacher(tiny_llama_folder: Path) -> Teacher:
    return Teacher(load_model(str(tiny_llama_folder), cache=tiny_llama_folder))


@pytest.fixture
async def engine(tiny_llama_folder: Path) -> AsyncIterator[TorchEngine]:
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute) as engine:
            yield engine
