"""What a train step costs with longer and longer rows: time, and memory besides what was resident before.

A row is one group: a quarter of its tokens is the prompt, the rest are 8 answers. Memory must grow with the row, not
with its square.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.models import Model
from benchmarks.setting import Places, Prepared

LENGTHS = (1024, 2048, 4096, 8192)

FIGURES = (
    *(Figure(f"seconds_{n}", f"seconds, row of {n:,} tokens", Better.LOWER) for n in LENGTHS),
    *(Figure(f"mb_{n}", f"memory of the step, MB, row of {n:,} tokens", Better.LOWER, digits=0) for n in LENGTHS),
    Figure("growth", f"memory per token, {LENGTHS[-1]:,} tokens in terms of {LENGTHS[0]:,}", Better.LOWER),
    Figure("resident_mb", "resident before, MB: weights, gradients, moments", digits=0),
)


@dataclass(frozen=True, slots=True)
class Learn:
    """One step for each of `LENGTHS`. With `checkpointed`, layers keep only their input. With `adapter_rank` above 0,
    adapters of that rank are trained, and not the weights."""

    name: str
    what: str
    checkpointed: bool = False
    adapter_rank: int = 0
    threads: int = 2
    rounds: int = 1
    warms_up: bool = False
    alone: bool = False
    module: str = "benchmarks.workers.ours_learn"
    peer: None = None
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        model = Model.SMOLLM2.folder(folder, places)
        spec = {"model": str(model), "folder": str(folder), "threads": self.threads, "checkpointed": self.checkpointed}
        return Prepared(ours={**spec, "adapter_rank": self.adapter_rank, "lengths": LENGTHS})

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        steps = {step["tokens"]: step for step in answer["steps"]}
        per_token = {n: steps[n]["bytes"] / n for n in LENGTHS}
        return {
            **{f"seconds_{n}": steps[n]["seconds"] for n in LENGTHS},
            **{f"mb_{n}": steps[n]["bytes"] / 1e6 for n in LENGTHS},
            "growth": per_token[LENGTHS[-1]] / per_token[LENGTHS[0]],
            "resident_mb": answer["resident"] / 1e6,
        }
