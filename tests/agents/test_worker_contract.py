"""Agents in this process keep the contract of rollout workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from worker_contract import WorkerContract
from worker_world import World, world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory, tiny_llama_folder: Path) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("local"), tiny_llama_folder) as opened:
        yield opened


@pytest.mark.asyncio(loop_scope="module")
class TestLocalWorker(WorkerContract):
    """In the driver."""
