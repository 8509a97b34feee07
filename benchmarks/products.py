"""The limit of whatever computes a model: its matrix products alone, at the rows that occur."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.flops import Layers
from benchmarks.setting import Spec
from benchmarks.work import Pace, Phase, Work


@dataclass(frozen=True, slots=True)
class ProductsPlan:
    """Every linear layer of the model, at the rows of each phase."""

    layers: Layers
    rows: Work
    threads: int

    @property
    def module(self) -> str:
        return "benchmarks.workers.gemm"

    @property
    def spec(self) -> Spec:
        return {
            "threads": self.threads,
            "layers": {"body": self.layers.body, "head": [self.layers.head]},
            "rows": {phase: asdict(rows) for phase, rows in self.rows.items()},
        }

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> Products:
        passes = [answer["phases"] for answer in answers]
        seconds = {
            phase: {part: statistics.median(one[phase][part] for one in passes) for part in passes[0][phase]}
            for phase in passes[0]
        }
        return Products(self.layers, self.rows, seconds)


@dataclass(frozen=True, slots=True)
class Products:
    """What was measured: `seconds` are those of one pass, by phase and part."""

    layers: Layers
    rows: Work
    seconds: Mapping[str, Mapping[str, float]]

    @property
    def pace(self) -> Pace:
        return Pace.of(self.seconds, self.rows)

    def gflops_per_second(self, phase: Phase) -> float:
        """What the machine's matrix products reach at the rows of one phase."""
        rows, seconds = self.rows[phase], self.seconds[phase]
        forward = rows.body * self.layers.body_flops + rows.head * self.layers.head_flops
        products = 3 if phase is Phase.TRAIN else 1
        return products * forward / (seconds["body"] + seconds["head"]) / 1e9

    def as_json(self) -> dict[str, Any]:
        return {
            phase: {
                "rows": asdict(rows),
                "seconds": self.seconds[phase],
                "gflops_per_second": self.gflops_per_second(phase),
            }
            for phase, rows in self.rows.items()
        }

    @property
    def line(self) -> str:
        speeds = ", ".join(f"{phase} {self.gflops_per_second(phase):.0f}" for phase in self.rows)
        return f"matrix products of this model on this machine, GFLOP/s: {speeds}"
