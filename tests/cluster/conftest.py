from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ray_is_up(tmp_path_factory) -> Iterator[None]:
    import os
    import sys
    import tempfile

    from loopwright.cluster.environment import prepare_environment

    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(Path(__file__).parent), *filter(None, sys.path)]))
    prepare_environment(joins=False)
    import ray

    folder = tempfile.mkdtemp(prefix="lw-ray-")
    ray.init(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=folder,
    )
    yield
    ray.shutdown()


@pytest.fixture
def cluster(ray_is_up, tmp_path):
    from loopwright.cluster.cluster import Cluster

    cluster = Cluster("127.0.0.1", tmp_path / "actors")
    cluster.begin_logs()
    return cluster
