"""The node on which an actor runs."""

from __future__ import annotations

import ray


def node_address() -> str:
    """The address at which other nodes reach the node of this actor."""
    return str(ray.util.get_node_ip_address())
