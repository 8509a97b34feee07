"""What a group costs the manager, the buffer and the runner in CPU time. It must not grow with what is in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Places, Prepared

IN_FLIGHT = (1_000, 10_000)

FIGURES = (
    *(Figure(f"ms_per_group_{n}", f"CPU ms per group of 8, {n:,} rollouts in flight", Better.LOWER) for n in IN_FLIGHT),
    Figure("growth", "the second in terms of the first", Better.LOWER),
    Figure("cpu_seconds", "CPU seconds"),
    Figure("peak_memory_mb", "peak memory, MB", Better.LOWER, digits=0),
)


@dataclass(frozen=True, slots=True)
class Manager:
    """Both cases make the same number of `groups`."""

    name: str
    what: str
    groups: int = 2_500
    threads: int = 1
    rounds: int = 3
    warms_up: bool = False
    alone: bool = False
    module: str = "benchmarks.workers.ours_manager"
    peer: None = None
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        return Prepared(ours={"groups": self.groups, "in_flight": IN_FLIGHT})

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        few, many = (1000 * seconds / self.groups for seconds in answer["cases"])
        return {
            "seconds": answer["seconds"],
            "cpu_seconds": answer["cpu_seconds"],
            **{f"ms_per_group_{n}": cost for n, cost in zip(IN_FLIGHT, (few, many), strict=True)},
            "growth": many / few,
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }
