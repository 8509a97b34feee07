"""One Ray cluster for all tests of this folder that ask for `cluster`, and one of two nodes for those of engines.
To start one takes longer than most tests, so the modules that share one stand together: pytest sorts them by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray_nodes import simulated_nodes

from loopwright.cluster.logs import ActorLogs
from loopwright.core.redaction import Redactor

NUM_CPUS = 16
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """The ids of the driver's node, which has four CPUs, and of another one."""

    here: str
    elsewhere: str


class SharedRay:
    """The clusters of this process, which is in one at a time. Whoever needs one says so, and whoever needs another one
    ends it."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._stack: ExitStack | None = None
        self._nodes: TwoNodes | None = None
        self.folder: Path | None = None
        self.said: list[str] = []

    def up(self) -> None:
        """The cluster of one node."""
        if self._stack is None or self._nodes is not None:
            from loopwright.cluster.opening import started_cluster

            _, self.folder = self._begun().enter_context(started_cluster(self._run, NUM_CPUS, self.said.append))

    def two_nodes(self) -> TwoNodes:
        if self._nodes is None:
            simulated = self._begun().enter_context(simulated_nodes(lose_nodes=False))
            from loopwright.cluster.node import this_node

            self._nodes = TwoNodes(this_node(), str(simulated.add().node_id))
        return self._nodes

    def down(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = self._nodes = None

    def _begun(self) -> ExitStack:
        self.down()
        self._stack = ExitStack()
        # Later tests must not see these.
        patched = self._stack.enter_context(pytest.MonkeyPatch.context())
        # Actors import the tests' own modules from where pytest found them.
        patched.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys([str(HERE), *filter(None, sys.path)])))
        # What actors must not see. Processes of Ray inherit it.
        patched.setenv("LOOPWRIGHT_TEST_KEY", "a secret of the driver")
        return self._stack


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the cluster after the last test of this folder, and its fixtures: it takes half a gigabyte."""
    shared = item.config.stash.get(SHARED, None)
    if shared is not None and (nextitem is None or HERE not in nextitem.path.parents):
        shared.down()


SHARED = pytest.StashKey[SharedRay]()


@pytest.fixture(scope="session")
def shared_ray(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRay]:
    shared = SharedRay(tmp_path_factory.mktemp("ray") / "run")
    request.config.stash[SHARED] = shared
    yield shared
    shared.down()


@pytest.fixture
def no_ray(shared_ray: SharedRay) -> None:
    """For a test that starts or joins a cluster itself, in this process."""
    shared_ray.down()


@pytest.fixture
def two_nodes(shared_ray: SharedRay) -> TwoNodes:
    """Two nodes on this machine, and this process is on the first."""
    return shared_ray.two_nodes()


@pytest.fixture
def cluster(shared_ray: SharedRay, tmp_path: Path):
    """The shared cluster, for one test. The output of its actors is in `tmp_path / "actors"`."""
    shared_ray.up()
    from loopwright.cluster.cluster import Cluster

    logs = ActorLogs()
    logs.write_to(tmp_path / "actors", Redactor())
    return Cluster("127.0.0.1", logs, shared_ray.folder)
