"""What the harness needs to know of a benchmark, whatever it measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.figures import Figure, Round
from benchmarks.flops import Layers, layers_of
from benchmarks.work import Pace, Work

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


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a benchmark's workers need. `rows` are those that the machine's limit is measured at."""

    ours: Spec
    peer: Spec
    layers: Layers
    rows: Work


class Benchmark(Protocol):
    """One comparison. Rounds are what workers answer, turned into figures once the limit is known."""

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
    def alone(self) -> bool:
        """Whether the sides' processes do not fit into memory together."""
        ...

    @property
    def module(self) -> str:
        """Our worker."""
        ...

    @property
    def peer(self) -> Peer: ...

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is shown, the headline first."""
        ...

    def prepare(self, folder: Path, places: Places) -> Prepared:
        """Write what the workers need into `folder`."""
        ...

    def round(self, answer: Mapping[str, Any], pace: Pace) -> Round:
        """The figures of one round from a worker's answer."""
        ...


def read_layers(model: Path) -> Layers:
    return layers_of(json.loads((model / "config.json").read_text("utf-8")))
