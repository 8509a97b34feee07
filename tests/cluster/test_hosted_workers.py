"""Agents on actors keep the contract of rollout workers, and survive the loss of their actors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from worker_contract import WorkerContract
from worker_world import World, world

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    from loopwright.cluster.opening import open_cluster
    from loopwright.config.placement import ClusterConfig

    async with open_cluster(ClusterConfig(num_cpus=16), tmp_path_factory.mktemp("actors")) as opened:
        opened.begin_logs()
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama_folder: Path, cluster: Cluster
) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("placed"), tiny_llama_folder, cluster) as opened:
        yield opened


class TestWorkersOnActors(WorkerContract):
    """Two actors for each agent."""
