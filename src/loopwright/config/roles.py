"""What a run wants to have on a cluster: how many actors of which kind, and what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from loopwright.config.placement import Strategy


class RoleKind(StrEnum):
    """What an actor does."""

    RANKS = "ranks"
    LOOPS = "loops"
    JUDGERS = "judgers"
    ENGINES = "engines"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Role:
    """`count` equal actors. `name` says for whom they work, and is unique among the roles of its kind. With `nodes`,
    they are spread evenly over so many nodes other than the driver's; 0 means the driver's own node, and None any.
    A node must have the `labels`."""

    kind: RoleKind
    name: str
    count: int
    cpus: float
    gpus: float = 0.0
    memory: int | None = None
    strategy: Strategy = Strategy.PACK
    nodes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Its name among all roles of a run."""
        return f"{self.kind}-{self.name}"

    @property
    def title(self) -> str:
        """Its name for people. There is one learner, one gateway, and one kind of engine."""
        return f"{self.kind} {self.name!r}" if self.kind in (RoleKind.LOOPS, RoleKind.JUDGERS) else str(self.kind)

    def actor_name(self, number: int) -> str:
        """The name of one of its actors, for people and for log files."""
        return f"{self.key}-{number}"
