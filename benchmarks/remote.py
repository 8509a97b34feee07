"""Programs as agents: what it costs to start one for each rollout, to answer it, and to record what it was answered.

The limit is the same programs without a runner and a gateway, in the same run. Most of the time is the programs' own.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Places, Prepared, Spec

QUESTION = "What is 12+7? Answer with the number only."
ANSWER = "The answer is 19."

FIGURES = (
    Figure("driver_cpu_ms", "CPU ms per rollout, the driver", Better.LOWER),
    Figure("program_cpu_ms", "CPU ms per rollout, its program"),
    Figure("seconds", "seconds", Better.LOWER),
    Figure("limit_share", "CPU of the bare programs, as a share of ours", digits=3),
    Figure("peak_memory_mb", "peak memory of the driver, MB", Better.LOWER, digits=0),
    Figure("processes", "most programs at a time", digits=0),
)


@dataclass(frozen=True, slots=True)
class BareProgramsPlan:
    """The limit: the same programs, started bare."""

    spec: Spec
    module: str = "benchmarks.workers.bare_programs"

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> BarePrograms:
        rounds = [_figures(answer, self.spec["programs"]) for answer in answers]
        return BarePrograms({key: statistics.median(one[key] for one in rounds) for key in rounds[0]})


@dataclass(frozen=True, slots=True)
class BarePrograms:
    pace: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return dict(self.pace)

    @property
    def line(self) -> str:
        bare = self.pace
        return (
            f"the same programs bare, with canned answers: {bare['seconds']:.1f} s, CPU {bare['driver_cpu_ms']:.2f} ms "
            f"of whoever starts and answers one, {bare['program_cpu_ms']:.1f} ms of the program, "
            f"{bare['peak_memory_mb']:.0f} MB, {bare['processes']:.0f} programs at a time"
        )


@dataclass(frozen=True, slots=True)
class Remote:
    """`programs` in a round, each asking `turns` times, `at_once` of them at a time."""

    name: str
    what: str
    programs: int = 200
    turns: int = 5
    at_once: int = 16
    threads: int = 1
    rounds: int = 3
    warms_up: bool = False
    alone: bool = False
    module: str = "benchmarks.workers.ours_remote"
    peer: None = None
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        spec = {
            "folder": str(folder),
            "programs": self.programs,
            "turns": self.turns,
            "at_once": self.at_once,
            "question": QUESTION,
            "answer": ANSWER,
        }
        return Prepared(ours=spec, limit=BareProgramsPlan(spec))

    def round(self, answer: Mapping[str, Any], pace: Mapping[str, float]) -> Round:
        own = _figures(answer, self.programs)
        return {**own, "limit_share": _cpu_ms(pace) / _cpu_ms(own)}


def _cpu_ms(figures: Mapping[str, float]) -> float:
    """Seconds would say less: on a busy machine they are mostly waiting."""
    return figures["driver_cpu_ms"] + figures["program_cpu_ms"]


def _figures(answer: Mapping[str, Any], programs: int) -> dict[str, float]:
    driver = answer["driver_cpu_seconds"]
    return {
        "driver_cpu_ms": 1e3 * driver / programs,
        "program_cpu_ms": 1e3 * (answer["cpu_seconds"] - driver) / programs,
        "seconds": answer["seconds"],
        "peak_memory_mb": answer["peak_memory"] / 1e6,
        "processes": answer["processes"],
    }
