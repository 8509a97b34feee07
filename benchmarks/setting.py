"""What the harness needs to know of a benchmark, whatever it measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.figures import Figure, Round
from benchmarks.flops import Layers, layers_of

Spec = dict[str, Any]
"""What a worker is told when it starts: plain JSON."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are: the source checkout, and the cache of converted models."""

    checkout: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side. `environment` is its own, inside the checkout; None is the one that Loopwright runs in."""

    name: str
    module: str
    environment: str | None = None


class Limit(Protocol):
    """What the machine could do at most, as it was measured beside the sides."""

    @property
    def pace(self) -> Any:
        """All that a round's figures need of it."""
        ...

    def as_json(self) -> dict[str, Any]: ...

    @property
    def line(self) -> str:
        """For the foot of the table."""
        ...


class LimitPlan(Protocol):
    """How the limit is measured: by a worker of our own, and what follows from its answers."""

    @property
    def module(self) -> str: ...

    @property
    def spec(self) -> Spec: ...

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> Limit: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a benchmark's workers need: ours, the peer's if there is one, and the limit's if it can be measured."""

    ours: Spec
    peer: Spec = field(default_factory=dict)
    limit: LimitPlan | None = None
    others: tuple[tuple[Peer, Spec], ...] = ()
    """Further sides of the same run, if they are installed. Ratios are to the peer."""


class Benchmark(Protocol):
    """One comparison, or a measurement of ours alone. Workers answer rounds, which become figures with the limit."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str:
        """In one line, for the list."""
        ...

    @property
    def threads(self) -> int: ...

    @property
    def rounds(self) -> int:
        """How many, unless someone asks for another number."""
        ...

    @property
    def warms_up(self) -> bool:
        """Whether a first round is made that does not count."""
        ...

    @property
    def alone(self) -> bool:
        """Whether the sides' processes do not fit into memory together."""
        ...

    @property
    def module(self) -> str:
        """Our worker."""
        ...

    @property
    def peer(self) -> Peer | None: ...

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is shown, the headline first."""
        ...

    def prepare(self, folder: Path, places: Places) -> Prepared:
        """Write what the workers need into `folder`."""
        ...

    def round(self, answer: Mapping[str, Any], pace: Any) -> Round:
        """The figures of one round from a worker's answer and the limit's pace, None without a limit."""
        ...


def read_layers(model: Path) -> Layers:
    return layers_of(json.loads((model / "config.json").read_text("utf-8")))
