"""What a relay adds to a call: the same scripted engine, asked over HTTP, and over a worker that dialled the gateway.

The gateway's side is in the process that measures; engine and worker have one each. Both ways stream the answer.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Places, Prepared

FIGURES = (
    Figure("added_p50_ms", "p50 added by the relay, ms", Better.LOWER, digits=2),
    Figure("added_p99_ms", "  p99 added, ms", Better.LOWER, digits=2),
    Figure("direct_p50_ms", "p50 of the engine itself, ms", digits=2),
    Figure("direct_rate", "calls per second to the engine itself", digits=0),
    Figure("relay_rate", "calls per second through the relay", Better.HIGHER, digits=0),
    Figure("cpu_seconds", "CPU seconds of the gateway's side"),
    Figure("peak_memory_mb", "peak memory of the gateway's side, MB", Better.LOWER, digits=0),
)


@dataclass(frozen=True, slots=True)
class RelayCalls:
    """`calls` one after the other, each way in turn; then `crowd` calls, `in_flight` at a time."""

    name: str
    what: str
    calls: int = 200
    crowd: int = 400
    in_flight: int = 32
    prompt_tokens: int = 512
    answer_tokens: int = 128
    threads: int = 1
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_relay"
    peer: None = None
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        names = ("calls", "crowd", "in_flight", "prompt_tokens", "answer_tokens")
        return Prepared(ours={**{name: getattr(self, name) for name in names}, "folder": str(folder)})

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        direct, relay = answer["direct"], answer["relay"]
        return {
            "added_p50_ms": 1e3 * (statistics.median(relay) - statistics.median(direct)),
            "added_p99_ms": 1e3 * (_slowest(relay) - _slowest(direct)),
            "direct_p50_ms": 1e3 * statistics.median(direct),
            "direct_rate": answer["direct_rate"],
            "relay_rate": answer["relay_rate"],
            "seconds": answer["seconds"],
            "cpu_seconds": answer["cpu_seconds"],
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }


def _slowest(seconds: list[float]) -> float:
    """What 99 in 100 calls do not exceed."""
    return statistics.quantiles(seconds, n=100)[98]
