"""How long a run takes whose rollouts differ much in length: training beside production, and one after the other.

The ideal is the work of the rollouts that were trained, shared by slots that are never idle. The slowest tenth of the
groups must not be left out for being slow: how much of it was trained is a figure of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Places, Prepared

STALENESS = (1, 2, 4)
LEARNER_SECONDS = (0.0, 4.0)
PARTS = {
    "speedup": "x the synchronous schedule",
    "ideal_share": "share of ideal",
    "slowest_groups": "slowest tenth: groups trained",
    "slowest_tokens": "slowest tenth: tokens trained",
}


def _figures() -> Iterator[Figure]:
    # The aims are about the last staleness, so it comes first.
    for staleness in reversed(STALENESS):
        for learner in LEARNER_SECONDS:
            for part, label in PARTS.items():
                text = f"staleness {staleness}, learner {learner:g} s: {label}"
                yield Figure(key_of(part, staleness, learner), text, Better.HIGHER, digits=3)
    yield Figure("cpu_seconds", "CPU seconds of the simulation")


def key_of(part: str, staleness: int, learner: float) -> str:
    return f"{part}/staleness_{staleness}/learner_{learner:g}"


@dataclass(frozen=True, slots=True)
class Makespan:
    """`steps` train steps, so many that the tail after the last one does not decide. Another round, another seed."""

    name: str
    what: str
    steps: int = 150
    threads: int = 1
    rounds: int = 1
    warms_up: bool = False
    alone: bool = False
    module: str = "benchmarks.workers.ours_makespan"
    peer: None = None
    figures: tuple[Figure, ...] = field(default_factory=lambda: tuple(_figures()))

    def prepare(self, folder: Path, places: Places) -> Prepared:
        return Prepared(ours={"steps": self.steps, "staleness": STALENESS, "learner_seconds": LEARNER_SECONDS})

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        figures = {"seconds": answer["seconds"], "cpu_seconds": answer["cpu_seconds"]}
        for case in answer["cases"]:
            in_turn = answer["in_turn_seconds"] + self.steps * case["learner"]
            numbers = {**case, "speedup": in_turn / case["makespan"], "ideal_share": case["ideal"] / case["makespan"]}
            figures |= {key_of(part, case["staleness"], case["learner"]): numbers[part] for part in PARTS}
        return figures
