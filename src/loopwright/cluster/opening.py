"""Starts a cluster for a run, or joins one that runs, and leaves it again.

Ray is started and left in a thread: both take seconds, and in the main thread Ray would replace our signal handlers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.cluster.environment import prepare_environment
from loopwright.cluster.folder import ray_folder
from loopwright.cluster.logs import ActorLogs
from loopwright.cluster.probe import examine_cluster
from loopwright.cluster.signals import kept_signal_handlers
from loopwright.config.placement import ClusterConfig
from loopwright.core.together import to_its_end
from loopwright.errors import ConfigError
from loopwright.models.control_groups import free_memory

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

SMALLEST_STORE = 75 << 20
"""Ray refuses less."""
LARGEST_STORE = 2 << 30
SHARE_FOR_STORE = 0.1
LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def open_cluster(config: ClusterConfig, run: Path) -> AsyncIterator[Cluster]:
    """The cluster of the run in the folder `run`, which need not be there yet."""
    logs = ActorLogs()
    say = _speaker(logs)
    context = (
        started_cluster(run, config.num_cpus, say) if config.address is None else joined_cluster(config.address, say)
    )
    stack = ExitStack()
    try:
        address, folder = await to_its_end(asyncio.to_thread(stack.enter_context, context))
        from loopwright.cluster.cluster import Cluster

        yield Cluster(address, logs, folder, start_seconds=config.start_seconds, room_seconds=config.room_seconds)
    finally:
        await to_its_end(asyncio.to_thread(stack.close))


@contextmanager
def started_cluster(run: Path, num_cpus: int | None, say: Callable[[str], object]) -> Iterator[tuple[str, Path | None]]:
    """A cluster of our own on this machine. Yields where actors reach this process, and the cluster's folder. `say`
    gets what Ray says in this process."""
    prepare_environment(joins=False)
    with ray_folder(run) as folder:
        settings = {
            "address": "local",
            "num_cpus": num_cpus or len(os.sched_getaffinity(0)),
            "object_store_memory": _store_bytes(),
            "include_dashboard": False,
            # Ray lets everybody into its folder, so it is inside of ours.
            "_temp_dir": str(folder / "r"),
        }
        with _connected(settings, say):
            yield LOOPBACK, folder


@contextmanager
def joined_cluster(address: str, say: Callable[[str], object]) -> Iterator[tuple[str, Path | None]]:
    """A cluster of somebody else. Raises ConfigError if it cannot be joined."""
    prepare_environment(joins=True)
    # In a child process first: Ray may try for ever, and then this process could only be killed.
    found = examine_cluster(address)
    with _connected({"address": found.address}, say):
        import ray

        yield ray.util.get_node_ip_address(), None


@contextmanager
def _connected(settings: dict[str, Any], say: Callable[[str], object]) -> Iterator[None]:
    import ray

    from loopwright.cluster.messages import told

    if ray.is_initialized():
        raise ConfigError(
            "this process is in a Ray cluster already",
            remedy="close the other run first, or open this one in a process of its own",
        )
    with told(say):
        try:
            with kept_signal_handlers():
                ray.init(**settings, log_to_driver=False, configure_logging=False)
            yield
        finally:
            ray.shutdown(wait_for_processes=True)


def _speaker(logs: ActorLogs) -> Callable[[str], None]:
    return lambda line: logs.write("ray", f"{line}\n".encode())


def _store_bytes() -> int:
    """How much memory the values take at most that actors hand to one another. They are small: weights go through
    shared memory of our own on this machine."""
    share = int((free_memory() or 0) * SHARE_FOR_STORE)
    return max(SMALLEST_STORE, min(LARGEST_STORE, share))
