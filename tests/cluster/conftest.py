"""One Ray cluster for all tests of this folder that ask for `cluster`: from the first to the last."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loopwright.cluster.logs import ActorLogs
from loopwright.core.redaction import Redactor

NUM_CPUS = 16
HERE = Path(__file__).parent


class SharedRay:
    """A cluster of this process that can be ended, and started again: a process is in one cluster at a time."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._stack: ExitStack | None = None
        self.folder: Path | None = None
        self.said: list[str] = []

    def up(self) -> None:
        if self._stack is None:
            from loopwright.cluster.opening import started_cluster

            self._stack = ExitStack()
            # Later tests must not see these.
            patched = self._stack.enter_context(pytest.MonkeyPatch.context())
            # Actors import the tests' own modules from where pytest found them.
            patched.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys([str(HERE), *filter(None, sys.path)])))
            # What actors must not see. Processes of Ray inherit it.
            patched.setenv("LOOPWRIGHT_TEST_KEY", "a secret of the driver")
            _, self.folder = self._stack.enter_context(started_cluster(self._run, NUM_CPUS, self.said.append))

    def down(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None


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
def cluster(shared_ray: SharedRay, tmp_path: Path):
    """The shared cluster, for one test. The output of its actors is in `tmp_path / "actors"`."""
    shared_ray.up()
    from loopwright.cluster.cluster import Cluster

    logs = ActorLogs()
    logs.write_to(tmp_path / "actors", Redactor())
    return Cluster("127.0.0.1", logs, shared_ray.folder)
