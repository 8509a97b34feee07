"""A cluster of several nodes on this machine, and actors that are started on a certain one of them.

As a program it starts such a cluster for a run that joins it: a process that has started a cluster cannot do so. Its
arguments say how many CPUs the nodes have that it starts with, the driver's first. It prints the cluster's address and
token. Lines of its standard input tell it to `add` a node like the last one, and to `lose` the one that was added last;
it ends with its standard input."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from loopwright.cluster.environment import prepare_environment
from loopwright.config.placement import ROOM_SECONDS, START_SECONDS
from loopwright.config.roles import Role, RoleKind

HOST = "127.0.0.1"
STORE_BYTES = 80 << 20
QUICK_DEATHS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
"""A lost node is noticed within two seconds."""


class Nodes:
    """The nodes of a simulated cluster. The driver is on the first."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, num_cpus: int = 2) -> Any:
        return self._cluster.add_node(num_cpus=num_cpus, node_ip_address=HOST, object_store_memory=STORE_BYTES)

    def remove(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)


class OnNode:
    """Starts actors as a cluster does, on a certain node. None: wherever there is room."""

    def __init__(self, node: str | None, memory: int | None = None) -> None:
        self._node = node
        self._memory = memory
        self.hosts: list[Any] = []
        """All actors that were started so far."""

    @asynccontextmanager
    async def launch(self, role: Role, number: int, opening: Any, what: str) -> AsyncIterator[Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from loopwright.cluster.remote_host import launched, pickled

        options: Mapping[str, Any] = {"num_cpus": role.cpus}
        if self._node is not None:
            options = {**options, "scheduling_strategy": NodeAffinitySchedulingStrategy(self._node, soft=False)}
        name, sent = role.actor_name(number), pickled(opening, what)
        fixed: Mapping[str, Any] = {
            "memory": self._memory,
            "on_output": lambda output: None,
            "start_seconds": START_SECONDS,
        }
        fixed = {**fixed, "room_seconds": ROOM_SECONDS}
        async with launched(name, sent, options, **fixed) as host:
            self.hosts.append(host)
            yield host


def engine_role(count: int = 1, cpus: float = 0.25) -> Role:
    return Role(RoleKind.ENGINES, f"test-{secrets.token_hex(2)}", count, cpus)


@contextmanager
def simulated_nodes(num_cpus: int = 4, *, lose_nodes: bool = True) -> Iterator[Nodes]:
    """A cluster with one node. A process is in one cluster at a time. With `lose_nodes`, the loss of one is noticed
    soon, and on a busy machine one may be taken for lost that is not."""
    # Ray's sockets have long names, and their folder must have a short one.
    with (
        tempfile.TemporaryDirectory(prefix="lw-", ignore_cleanup_errors=True) as folder,
        _simulated(folder, num_cpus, QUICK_DEATHS if lose_nodes else {}) as nodes,
    ):
        yield nodes


@contextmanager
def _simulated(temporary: str, num_cpus: int, settings: Mapping[str, int]) -> Iterator[Nodes]:
    prepare_environment(joins=False)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    # Ray writes the address of such a cluster to a file in this folder.
    patched = pytest.MonkeyPatch()
    patched.setenv("RAY_TMPDIR", temporary)
    Path(temporary, "ray").mkdir(exist_ok=True)
    try:
        cluster.add_node(
            num_cpus=num_cpus,
            node_ip_address=HOST,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            temp_dir=temporary,
            _system_config=dict(settings),
        )
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()
        _end_agents(temporary)
        patched.undo()


def _end_agents(temporary: str) -> None:
    """Those of a node that was lost live on for a minute, and write to the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # By their environment: they change their command lines.
            is_agent = f"RAY_TMPDIR={temporary}".encode() in (process / "environ").read_bytes().split(b"\0")
            if is_agent and process.name != str(os.getpid()):
                os.kill(int(process.name), signal.SIGKILL)


if __name__ == "__main__":
    first, *others = (int(argument) for argument in sys.argv[1:])
    with simulated_nodes(first) as nodes:
        added = [nodes.add(cpus) for cpus in others]
        print(nodes.address, os.environ["RAY_AUTH_TOKEN"], flush=True)
        for line in sys.stdin:
            if line.strip() == "add":
                added.append(nodes.add(others[-1]))
            else:
                nodes.remove(added.pop())
            print("done", flush=True)
