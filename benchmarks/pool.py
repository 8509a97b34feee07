"""What a request costs the controller in CPU time, with few and with many engines. It must not grow with the engines.

The engines are scripted and in the same process, so all time is ours. The limit is the same requests, straight to the
same engines.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Places, Prepared, Spec

ENGINES = (1, 8, 64)
FEWEST, MOST = ENGINES[0], ENGINES[-1]

FIGURES = (
    *(Figure(f"us_{n}", f"CPU us per request, engines: {n}", Better.LOWER, digits=1) for n in ENGINES),
    Figure("growth", f"with {MOST} engines in terms of {FEWEST}", Better.LOWER),
    *(Figure(f"added_us_{n}", f"of it, added by the controller, engines: {n}", digits=1) for n in ENGINES),
    Figure("added_growth", f"added with {MOST} engines in terms of {FEWEST}", Better.LOWER),
    Figure("cpu_seconds", "CPU seconds"),
    Figure("peak_memory_mb", "peak memory, MB", Better.LOWER, digits=0),
)


@dataclass(frozen=True, slots=True)
class StraightPlan:
    """The limit: no controller."""

    spec: Spec
    module: str = "benchmarks.workers.straight_pool"

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> StraightLimit:
        rounds = [_microseconds(answer, self.spec["requests"]) for answer in answers]
        return StraightLimit({name: statistics.median(one[name] for one in rounds) for name in rounds[0]})


@dataclass(frozen=True, slots=True)
class StraightLimit:
    pace: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return dict(self.pace)

    @property
    def line(self) -> str:
        costs = ", ".join(f"{self.pace[f'us_{n}']:.1f} (engines: {n})" for n in ENGINES)
        return f"the same requests straight to the engines on this machine, CPU us per request: {costs}"


@dataclass(frozen=True, slots=True)
class PoolRequests:
    """`requests` go to each number of engines, `in_flight` at a time."""

    name: str
    what: str
    requests: int = 16_384
    in_flight: int = 256
    threads: int = 1
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_pool"
    peer: None = None
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        spec = {"requests": self.requests, "in_flight": self.in_flight, "engines": ENGINES}
        return Prepared(ours=spec, limit=StraightPlan(spec))

    def round(self, answer: Mapping[str, Any], pace: Mapping[str, float]) -> Round:
        own = _microseconds(answer, self.requests)
        added = {f"added_us_{n}": own[f"us_{n}"] - pace[f"us_{n}"] for n in ENGINES}
        return {
            **own,
            **added,
            "growth": own[f"us_{MOST}"] / own[f"us_{FEWEST}"],
            "added_growth": added[f"added_us_{MOST}"] / added[f"added_us_{FEWEST}"],
            "seconds": answer["seconds"],
            "cpu_seconds": answer["cpu_seconds"],
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }


def _microseconds(answer: Mapping[str, Any], requests: int) -> dict[str, float]:
    return {f"us_{n}": 1e6 * seconds / requests for n, seconds in zip(ENGINES, answer["cases"], strict=True)}
