"""The schema of placement: what runs on actors of a Ray cluster, and which cluster that is.

What depends on several of these settings is in `config/checks/placing.py`, and that a run with actors needs Ray is in
`RunConfig.needs`: a section that overrides `problems` or `needs` cannot forget it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from loopwright.config.base import Count, CountOrZero, FromYaml, NotNegative, Positive, Section, Text
from loopwright.config.problems import KeyPath, Problem

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
LEAST_MEMORY = 64 * 2**20
"""An actor is a Python process, and takes more. A smaller number is a number of other units."""
START_SECONDS = 900.0
"""Longer than an engine may take by itself."""
ROOM_SECONDS = 1800.0
ADDRESS = r"auto|[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}"


def _bytes(value: object) -> object:
    """`2 GiB` as a number of bytes. Numbers stay as they are."""
    if not isinstance(value, str):
        return value
    units = {unit.lower(): size for unit, size in UNITS.items()}
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value)
    if parts is None or parts[2].lower() not in units:
        raise PydanticCustomError("bytes", f"a number of bytes, or one with a unit, as in '2 GiB' ({', '.join(UNITS)})")
    return int(float(parts[1]) * units[parts[2].lower()])


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=LEAST_MEMORY)]
"""A number of bytes, or a text with a unit: `512 MiB`, `2 GB`."""

PER_ACTOR = ("num_cpus_per_actor", "num_gpus_per_actor", "memory_per_actor")


class PlacedSection(Section):
    """Something that may run on actors. `num_actors` 0: here, in the driver; n: on n actors of the cluster, each with
    so many CPUs and GPUs. An actor that takes more than `memory_per_actor` is ended."""

    num_actors: CountOrZero = 0
    num_cpus_per_actor: NotNegative = 1.0
    num_gpus_per_actor: NotNegative = 0.0
    memory_per_actor: Bytes | None = None


class Strategy(StrEnum):
    """How the actors of one role are spread over nodes."""

    PACK = "pack"
    """On as few nodes as possible."""
    SPREAD = "spread"
    """On as many nodes as possible."""


class StrategyConfig(Section):
    """How the actors of each role are spread over the nodes of the cluster."""

    ranks: FromYaml[Strategy] = Strategy.PACK
    loops: FromYaml[Strategy] = Strategy.PACK
    judgers: FromYaml[Strategy] = Strategy.SPREAD
    engines: FromYaml[Strategy] = Strategy.SPREAD


Labels = dict[Text, Text]
"""Labels of a node, each with the value that it must have: `a`, `!a`, `in(a, b)` or `!in(a, b)`."""


LABEL_REMEDY = "labels are of letters, digits and ._- between them, at most 63"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
WANTED = rf"!?(?:{LABEL}|in\({LABEL}(?:, ?{LABEL})*\))"


class LabelsConfig(Section):
    """The labels of the nodes on which each role may run."""

    ranks: Labels = Field(default_factory=dict)
    loops: Labels = Field(default_factory=dict)
    judgers: Labels = Field(default_factory=dict)
    engines: Labels = Field(default_factory=dict)
    gateway: Labels = Field(default_factory=dict)

    def problems(self) -> Iterator[Problem]:
        for role in type(self).model_fields:
            for key, wanted in getattr(self, role).items():
                if not re.fullmatch(rf"(?:[A-Za-z0-9.-]+/)?{LABEL}", key):
                    yield Problem((role,), f"has the key {key!r}, which Ray refuses as a label", LABEL_REMEDY)
                if not re.fullmatch(WANTED, wanted):
                    yield Problem(
                        (role, key),
                        f"is {wanted!r}, which no label can be",
                        f"write a, !a, in(a, b) or !in(a, b); {LABEL_REMEDY}",
                    )


class ClusterConfig(Section):
    """The Ray cluster for everything that has `num_actors`. Without `address`, the run starts one on this machine that
    declares `num_cpus`, by default as many as there are cores. `address` is `auto`, or host:port of a running one. An
    actor that has not opened its part after `start_seconds` is lost. One whose node was lost waits `room_seconds` for
    another one, and longer while others do its work."""

    address: Text | None = None
    num_cpus: Count | None = None
    start_seconds: Positive = START_SECONDS
    room_seconds: Positive = ROOM_SECONDS
    strategy: StrategyConfig = StrategyConfig()
    labels: LabelsConfig = LabelsConfig()

    def problems(self) -> Iterator[Problem]:
        if self.address is not None and not re.fullmatch(ADDRESS, self.address):
            yield Problem(
                ("address",),
                f"is {self.address!r}, which is no address of a cluster",
                "write auto, or host:port of its head node, for example 10.0.0.5:6379",
            )

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.address is not None:
            yield ("num_cpus",), "the cluster at cluster.address has the CPUs that it has"
