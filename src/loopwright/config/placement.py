"""The schema of placement: what runs on actors of a Ray cluster, and which cluster that is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from loopwright.config.base import Count, CountOrZero, FromYaml, NotNegative, Section, Text
from loopwright.config.needs import Need, Outside

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _bytes(value: object) -> object:
    """`2 GiB` as a number of bytes. Anything else stays as it is, for pydantic to refuse."""
    if isinstance(value, str) and (parts := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value)):
        return int(float(parts[1]) * UNITS[parts[2]]) if parts[2] in UNITS else value
    return value


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1)]
"""A number of bytes, or a text with a unit: `512 MiB`, `2 GB`."""


class Placed(Section):
    """Something that may run on actors. `num_actors` 0: here, in the driver; n: on n actors of the cluster, each with
    so many CPUs and GPUs. An actor that takes more than `memory_per_actor` is ended."""

    num_actors: CountOrZero = 0
    num_cpus_per_actor: NotNegative = 1.0
    num_gpus_per_actor: NotNegative = 0.0
    memory_per_actor: Bytes | None = None

    def needs(self) -> Iterator[Need]:
        if self.num_actors:
            yield Need(Outside.EXTRA, ("num_actors",), "ray")
            yield Need(Outside.EXTRA, ("num_actors",), "serve")
        yield from super().needs()


class Strategy(StrEnum):
    """How the actors of one role are spread over nodes."""

    PACK = "pack"
    """On as few nodes as possible."""
    SPREAD = "spread"
    """On as many nodes as possible."""


class StrategyConfig(Section):
    """How the actors of each role are spread over the nodes of the cluster."""

    loops: FromYaml[Strategy] = Strategy.PACK
    judgers: FromYaml[Strategy] = Strategy.SPREAD
    engines: FromYaml[Strategy] = Strategy.SPREAD


class ClusterConfig(Section):
    """The Ray cluster for everything that has `num_actors`. Without `address`, the run starts one on this machine that
    declares `num_cpus`, by default as many as there are cores. `address` is `auto`, or host:port of a running one."""

    address: Text | None = None
    num_cpus: Count | None = None
    strategy: StrategyConfig = StrategyConfig()
