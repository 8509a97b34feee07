"""The nodes of a cluster and what an actor takes of them, as values. Nothing here knows Ray."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from loopwright.config.roles import Role

PRECISION = 10_000
"""Ray counts resources in parts of this."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a node has, or an actor takes. Memory is in bytes."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return Resources(_exact(self.cpus + other.cpus), _exact(self.gpus + other.gpus), self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return self + other * -1

    def __mul__(self, times: int) -> Resources:
        return Resources(_exact(self.cpus * times), _exact(self.gpus * times), self.memory * times)

    def holds(self, other: Resources) -> bool:
        return self.cpus >= other.cpus and self.gpus >= other.gpus and self.memory >= other.memory


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster. `total` is what it has, and `free` what nobody has reserved yet. `is_driver`: the
    run's own process is on it."""

    id: str
    address: str
    total: Resources
    free: Resources
    is_driver: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.address} ({self.id[:8]})" if self.id else self.address


@dataclass(frozen=True, slots=True)
class Bundle:
    """Actors of a role that are on one node together: `count` of them."""

    role: Role
    count: int

    @property
    def takes(self) -> Resources:
        return per_actor(self.role) * self.count


def per_actor(role: Role) -> Resources:
    """What one actor takes. Without a limit of memory it takes none: 0 is what Ray is told too."""
    return Resources(role.cpus, role.gpus, role.memory or 0)


def bundles_of(role: Role) -> tuple[Bundle, ...]:
    """What of a role can be moved by itself. With `nodes`, all actors of one node belong together."""
    if role.nodes:
        return (Bundle(role, role.count // role.nodes),) * role.nodes
    return (Bundle(role, 1),) * role.count


def may_run_on(role: Role, node: ClusterNode) -> bool:
    """Whether the labels and `rollout.nodes` let an actor of this role be on the node."""
    if role.nodes is not None and node.is_driver != (role.nodes == 0):
        return False
    return all(_matches(node.labels.get(key), wanted) for key, wanted in role.labels.items())


def _matches(value: str | None, wanted: str) -> bool:
    """Ray's own rule: `a`, `!a`, `in(a, b)`, `!in(a, b)`. A node without the label has another value."""
    is_other, rest = wanted.startswith("!"), wanted.removeprefix("!")
    several = re.fullmatch(r"in\((.*)\)", rest)
    names = [name.strip() for name in several[1].split(",")] if several else [rest]
    return (value in names) != is_other


def _exact(value: float) -> float:
    return round(value * PRECISION) / PRECISION
