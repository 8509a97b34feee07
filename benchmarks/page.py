"""The web page on a large run: when its views are usable in Chromium, and what its server costs.

The run is made once, into the cache: train steps of 512 rollouts with 300 tokens each, and one chain of 100,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.large_run import LargeRun, make_large_run
from benchmarks.setting import Places, Prepared

LOW = Better.LOWER
FIGURES = (
    Figure("first_view", "seconds until the first view is usable (aim 2)", LOW),
    Figure("step", "  a step (aim 1)", LOW),
    Figure("trajectory", "  a trajectory (aim 1)", LOW),
    Figure("tokens", "  1,000 tokens in the middle of the chain of 100,000 (aim 1)", LOW),
    Figure("search", "  the first hit of a search, of a word of all steps (aim 2)", LOW),
    Figure("search_old", "  the only hit of a search, 50 steps back", LOW),
    Figure("health", "  health, with alarms", LOW),
    Figure("largest_answer_kb", "the largest answer, kB (at most 2,000)", LOW, digits=0),
    Figure("server_mb", "peak memory of the server, MB (below 500)", LOW, digits=0),
    Figure("stream_share", "an open stream of events beside a run that grows, % of one core (at most 3)", LOW),
    Figure("run_gb", "size of the run, GB"),
)


@dataclass(frozen=True, slots=True)
class LargePage:
    name: str
    what: str
    steps: int = 1000
    rollouts: int = 512
    threads: int = 1
    rounds: int = 3
    warms_up: bool = False
    alone: bool = False
    module: str = "benchmarks.workers.ours_page"
    peer: None = None
    figures: tuple[Figure, ...] = FIGURES
    stream_seconds: float = 20.0

    def prepare(self, folder: Path, places: Places) -> Prepared:
        run = LargeRun(self.steps, self.rollouts)
        path = make_large_run(places.cache.parent / "bench", run)
        spec = {
            "run": str(path),
            "folder": str(folder),
            "step": self.steps // 2,
            "long": run.long_chain,
            "only": run.only_text,
            "stream_seconds": self.stream_seconds,
        }
        return Prepared(ours=spec)

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        return {
            **answer["usable"],
            "largest_answer_kb": answer["largest_answer"] / 1e3,
            "server_mb": answer["server_memory"] / 1e6,
            "stream_share": 100 * answer["stream_share"],
            "run_gb": answer["run_bytes"] / 1e9,
        }
