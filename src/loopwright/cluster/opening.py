"""Starts a cluster for a run, or joins one that runs, and leaves it again."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.cluster.environment import prepare_environment
from loopwright.config.placement import ClusterConfig

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster


@asynccontextmanager
async def open_cluster(config: ClusterConfig, logs: Path) -> AsyncIterator[Cluster]:
    prepare_environment(joins=config.address is not None)
    import ray

    from loopwright.cluster.cluster import Cluster

    folder = tempfile.mkdtemp(prefix="lw-ray-")
    try:
        await asyncio.to_thread(
            ray.init,
            address=config.address or "local",
            num_cpus=config.num_cpus or len(os.sched_getaffinity(0)),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
        )
        try:
            yield Cluster("127.0.0.1", logs)
        finally:
            await asyncio.to_thread(ray.shutdown)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
