"""The node of a cluster that a run starts on this machine, before it is started."""

from __future__ import annotations

import os

from loopwright.cluster.nodes import ClusterNode, Resources
from loopwright.models.control_groups import free_memory
from loopwright.models.gpus import machine_gpus

ADDRESS = "127.0.0.1"
UNKNOWN_MEMORY = 1 << 60
"""Where nobody knows how much there is before Ray runs, nothing is refused for it."""


def local_node(num_cpus: int | None) -> ClusterNode:
    """The only node. `num_cpus` is what the cluster declares, by default as many as there are cores."""
    cpus, memory = num_cpus or machine_cores(), free_memory() or UNKNOWN_MEMORY
    total = Resources(float(cpus), float(machine_gpus()), float(memory))
    return ClusterNode("", ADDRESS, total, total, is_driver=True)


def machine_cores() -> int:
    return len(os.sched_getaffinity(0))


def declares_too_much(num_cpus: int | None) -> str | None:
    """A warning if the cluster declares more CPUs than the machine has cores."""
    if num_cpus is None or num_cpus <= machine_cores():
        return None
    return f"cluster.num_cpus is {num_cpus}, and this machine has {machine_cores()} cores: the actors share them"
