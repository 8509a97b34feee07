"""Asks a cluster who is in it, from a child process that can be killed: Ray may try for ever to reach one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.errors import ConfigError

SECONDS = 60.0
"""How long it may take to join a cluster and to leave it. Importing Ray takes several seconds of it."""
REMEDY = (
    "see that the cluster runs, and that this machine is a node of it (`ray start --address HOST:PORT`); "
    "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A living node. `resources` is what it has in total."""

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A running cluster. `address` is its host:port, `ray` its version."""

    address: str
    ray: str
    nodes: tuple[Node, ...]


def examine_cluster(address: str, seconds: float = SECONDS) -> Found:
    """The cluster at `address`, which is `auto` or host:port. Raises ConfigError if it cannot be joined in time."""
    wanted = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = wanted.rpartition(":")
    if wanted != "auto" and (not host or "://" in wanted or not port.isdecimal()):
        raise ConfigError(
            f"cluster.address is {wanted!r}, which is neither `auto` nor host:port",
            remedy="give the address of the head node, such as 10.0.0.1:6379; leave it out to start a cluster",
        )
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__, wanted], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the Ray cluster at {wanted} could not be joined within {seconds:g} s: {_last_line(error.stderr)}",
            remedy=REMEDY,
        ) from error
    if ended.returncode:
        raise ConfigError(f"no Ray cluster can be joined at {wanted}: {_last_line(ended.stderr)}", remedy=REMEDY)
    said = json.loads(ended.stdout.splitlines()[-1])
    return Found(said["address"], said["ray"], tuple(Node(**node) for node in said["nodes"]))


def _last_line(text: str | bytes | None) -> str:
    lines = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text or "").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _said(address: str) -> dict[str, Any]:
    from loopwright.cluster.environment import prepare_environment

    prepare_environment(joins=True)
    import ray

    context = ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        nodes = [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "resources": node["Resources"],
                "labels": node["Labels"],
            }
            for node in ray.nodes()
            if node["Alive"]
        ]
        return {"address": context.address_info["gcs_address"], "ray": ray.__version__, "nodes": nodes}
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(_said(sys.argv[1])))
