"""The step of `learn` by two ranks, beside one process: time, and the memory of each process.

Both learners are opened from the same config, with as many threads in all. Each rank holds half of the weights and
computes half of the answers, and the prompt is computed by both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.figures import Figure, Round
from benchmarks.learn import (
    FIRST,
    GROWTH,
    LENGTHS,
    LONGEST,
    LR,
    RESIDENT,
    linearity,
    memory_figure,
    most_memory,
    seconds_figure,
)
from benchmarks.models import Model
from benchmarks.setting import Peer, Places, Prepared, Spec

STALL_SECONDS = 1800
"""A step on a long row may take so long on a busy machine."""

FIGURES = (
    *map(seconds_figure, LENGTHS),
    *map(memory_figure, LENGTHS),
    *(Figure(f"other_mb_{n}", f"  of the other rank, row of {n:,} tokens", digits=0) for n in LENGTHS),
    GROWTH,
    LONGEST,
    RESIDENT,
    Figure("communication_share", "share of communication in the longest row"),
)

MODULE = "benchmarks.workers.ours_learn_ranks"
ALONE = Peer("one-process", MODULE)


@dataclass(frozen=True, slots=True)
class LearnRanks:
    """One step for each of `lengths`, by `ranks` ranks."""

    name: str
    what: str
    model: Model = Model.SMOLLM2
    ranks: int = 2
    lengths: tuple[int, ...] = LENGTHS
    threads: int = 2
    rounds: int = 1
    warms_up: bool = False
    alone: bool = True
    module: str = MODULE
    peer: Peer = ALONE
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        return Prepared(self._spec(folder / "ranks", places, self.ranks), self._spec(folder / "alone", places, 1))

    def _spec(self, folder: Path, places: Places, ranks: int) -> Spec:
        folder.mkdir()
        model = self.model.folder(folder, places)
        (folder / "tasks.jsonl").write_text("")
        config = folder / "run.yaml"
        config.write_text(yaml.safe_dump(self._config(model, folder, ranks)), "utf-8")
        return {
            "config": str(config),
            "cache": str(places.cache),
            "first": FIRST,
            "lengths": self.lengths,
            # They need it at the same time.
            "most_bytes": most_memory() // ranks,
        }

    def _config(self, model: Path, folder: Path, ranks: int) -> dict[str, Any]:
        return {
            "model": {"path": str(model), "device": "cpu", "threads": max(1, self.threads // ranks)},
            "data": {"kind": "jsonl", "path": str(folder / "tasks.jsonl")},
            "agent": {"kind": "single_turn", "judger": "integer_answer"},
            "rollout": {"engine": {"num_engines": 1}},
            "learner": {"lr": LR, "ranks": ranks, "micro_batch_tokens": max(self.lengths)},
            "trainer": {"run_dir": str(folder / "run"), "steps": 100, "stall_seconds": STALL_SECONDS},
        }

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        figures: dict[str, float] = {}
        most: dict[int, float] = {}
        for step in answer["steps"]:
            tokens = step["tokens"]
            largest, *others = sorted(step["bytes"], reverse=True)
            most[tokens] = largest
            figures |= {f"seconds_{tokens}": step["seconds"], f"mb_{tokens}": largest / 1e6}
            figures |= {f"other_mb_{tokens}": size / 1e6 for size in others[:1]}
            figures["communication_share"] = step["communication_share"]
        return {**figures, **linearity(most), "resident_mb": max(answer["resident"]) / 1e6}
