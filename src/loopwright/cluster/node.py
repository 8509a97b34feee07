"""Where this process is in the cluster."""

from __future__ import annotations

import ray
import ray.util

LOOPBACK = "127.0.0.1"


def this_node() -> str:
    """The id of the node on which this process runs."""
    return str(ray.get_runtime_context().get_node_id())


def node_address() -> str:
    """The address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())


def address_for(node: str) -> str:
    """Where a process on `node` reaches this one: on loopback if it is the same node."""
    return LOOPBACK if node == this_node() else node_address()
