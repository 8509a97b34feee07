"""Asks a cluster who is in it, from a child process that can be killed: Ray may try for ever to reach one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.core.own_command import own_command
from loopwright.errors import ConfigError

SECONDS = 180.0
"""How long it may take to join a cluster and to leave it: several seconds on an idle machine, most of them to import
Ray, and more than a minute on a busy one."""
CONNECT_SECONDS = 10.0
TRIES = 3
"""How often Ray tries to get an answer, once a second. It also tries again if its token is refused."""
REMEDY = (
    "see that the cluster runs, and that this machine is a node of it (`ray start --address HOST:PORT`); "
    "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
)


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A living node. `resources` is what it has in total."""

    id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A running cluster. `address` is its host:port, `ray` its version."""

    address: str
    ray: str
    nodes: tuple[FoundNode, ...]


def examine_cluster(address: str, seconds: float = SECONDS) -> FoundCluster:
    """The cluster at `address`, which is `auto` or host:port. Raises ConfigError if it cannot be joined in time."""
    wanted = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = wanted.rpartition(":")
    if wanted != "auto" and (not host or "://" in wanted or not port.isdecimal()):
        raise ConfigError(
            f"cluster.address is {wanted!r}, which is neither `auto` nor host:port",
            remedy="give the address of the head node, such as 10.0.0.1:6379; leave it out to start a cluster",
        )
    if wanted != "auto":
        _require_listener(host, int(port))
    command = own_command(__name__, wanted)
    env = {**os.environ, "RAY_NUM_REDIS_GET_RETRIES": str(TRIES)}
    try:
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise _not_joined(wanted, f"it did not answer within {seconds:g} s") from error
    said = _last_line(ended.stdout)
    if ended.returncode:
        raise _not_joined(wanted, said or _last_line(ended.stderr))
    found = json.loads(said)
    return FoundCluster(found["address"], found["ray"], tuple(FoundNode(**node) for node in found["nodes"]))


def _require_listener(host: str, port: int) -> None:
    """Ray would try for a minute to reach an address at which nobody listens."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise _not_joined(f"{host}:{port}", str(error)) from error


def _not_joined(address: str, why: str) -> ConfigError:
    return ConfigError(f"no Ray cluster can be joined at {address}: {why}", remedy=REMEDY)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


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


def _reason(error: BaseException) -> str:
    """What was wrong in the first place, in one sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Ray says first that it cannot connect, and later that its token was refused.
    told = next((line for line in lines if "token" in line), lines[0])
    return told.strip().partition(". ")[0]


if __name__ == "__main__":
    try:
        print(json.dumps(_said(sys.argv[1])))
    except Exception as refused:
        print(_reason(refused))
        sys.exit(1)
