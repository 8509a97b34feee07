"""A whole update of an engine's weights by each transport, from the learner's parameters to the proof.

The limit is a copy of as many bytes within one process, into memory that it already has and into fresh pages.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.models import Model
from benchmarks.setting import Places, Prepared, Spec

TRANSPORTS = ("in_place", "file", "broadcast", "object_store")
PARTS = ("write", "load", "proof")


def _figures() -> Iterator[Figure]:
    for transport in TRANSPORTS:
        name = transport.replace("_", " ")
        yield Figure(f"{transport}_seconds", f"{name}: the whole update, s", Better.LOWER, digits=3)
        for part in PARTS:
            if transport != "in_place" or part != "write":
                yield Figure(f"{transport}_{part}", f"  of it {part}", digits=3)
        if transport != "in_place":
            yield Figure(f"{transport}_copies", "  without the proof, in bare copies to memory that is there", digits=1)
    yield Figure("cpu_seconds", "CPU seconds of the learner's process, all of them", digits=2)
    yield Figure("peak_memory_mb", "peak memory of the learner's process, MB", digits=0)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The limit: a copy of as many bytes."""

    spec: Spec
    module: str = "benchmarks.workers.bare_copy"

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> BareCopy:
        names = ("warm", "fresh")
        return BareCopy({name: statistics.median(one[name] for one in answers) for name in names}, self.spec["bytes"])


@dataclass(frozen=True, slots=True)
class BareCopy:
    """Seconds of a copy into memory that the process has (`warm`) and into new memory (`fresh`)."""

    pace: Mapping[str, float]
    bytes: int

    def as_json(self) -> dict[str, Any]:
        return {**self.pace, "bytes": self.bytes}

    @property
    def line(self) -> str:
        return (
            f"a copy of as many bytes ({self.bytes / 1e6:.0f} MB) within a process: {self.pace['warm']:.3f} s into "
            f"memory that it has, {self.pace['fresh']:.3f} s into fresh pages"
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """A round is one update by each transport: `in_place` of an engine in the learner's process, the others of
    `loopwright engine`, and `object_store` of an engine on an actor."""

    name: str
    what: str
    model: Model = Model.SMOLLM2
    threads: int = 2
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_weights"
    peer: None = None
    figures: tuple[Figure, ...] = tuple(_figures())

    def prepare(self, folder: Path, places: Places) -> Prepared:
        model = self.model.folder(folder, places)
        spec = {"folder": str(folder), "model": str(model), "threads": self.threads}
        size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        return Prepared(ours=spec, limit=CopyPlan({"bytes": size}))

    def round(self, answer: Mapping[str, Any], pace: Mapping[str, float]) -> Round:
        figures = {
            "seconds": answer["seconds"],
            "cpu_seconds": answer["cpu_seconds"],
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }
        for transport, parts in answer["updates"].items():
            figures |= {f"{transport}_{part}": seconds for part, seconds in parts.items()}
            moved = parts["seconds"] - parts["proof"]
            figures[f"{transport}_copies"] = moved / pace["warm"]
        return figures
