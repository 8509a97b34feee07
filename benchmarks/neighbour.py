"""A GRPO step on a quiet machine, and beside a process that keeps one core busy.

The other side is ours too, with OpenMP's threads waiting as libgomp lets them by default: spinning. Two threads that
share two cores with one other process could have two thirds of the time: 1.5 times the quiet step is fair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.grpo import Grpo
from benchmarks.setting import Peer, Places, Prepared, Spec

FIGURES = (
    Figure("busy_seconds", "seconds per step beside a busy process", Better.LOWER),
    Figure("quiet_seconds", "seconds per step on a quiet machine", Better.LOWER),
    Figure("times_quiet", "times the quiet step", Better.LOWER),
    Figure("quiet_cpu_seconds", "CPU seconds per quiet step", Better.LOWER),
    Figure("peak_memory_mb", "peak memory, MB", digits=0),
)

MODULE = "benchmarks.workers.ours_busy"
SPINNING = Peer("spinning", MODULE)


@dataclass(frozen=True, slots=True)
class BesideBusy:
    """`step` is what is measured."""

    name: str
    what: str
    step: Grpo
    threads: int = 2
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = MODULE
    peer: Peer = SPINNING
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        return Prepared(ours=self._spec(folder / "ours", places), peer=self._spec(folder / "spins", places, spins=True))

    def _spec(self, folder: Path, places: Places, *, spins: bool = False) -> Spec:
        folder.mkdir()
        return {**self.step.prepare(folder, places).ours, "spins": spins}

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        return {
            **{key: answer[key] for key in ("quiet_seconds", "busy_seconds", "quiet_cpu_seconds")},
            "times_quiet": answer["busy_seconds"] / answer["quiet_seconds"],
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }
