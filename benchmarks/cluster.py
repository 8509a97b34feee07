"""What Ray's actors cost: a call through our router, rollouts, and calls through the door of a run.

Rollouts are scripted, so that nothing but the way there and back takes time. The limit of a call is one to an actor of
Ray's own, with nothing of ours in between.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Places, Prepared

ACTORS = (1, 2, 4, 16)
RATED = (1, 2, 4)
FLAT = (1, 4, 16)


def _figures() -> Iterator[Figure]:
    yield Figure("added_p50_ms", "added to a local call by router and actor, median, ms", Better.LOWER, digits=2)
    yield Figure("added_p99_ms", "  the slowest in a hundred, ms", Better.LOWER, digits=2)
    yield Figure("bare_p50_ms", "  limit: an actor of Ray's own, median, ms", digits=2)
    yield Figure("bare_p99_ms", "  limit: the slowest in a hundred, ms", digits=2)
    for n in RATED:
        yield Figure(f"rate_{n}", f"rollouts per second, loop actors: {n}", Better.HIGHER, digits=0)
    for n in FLAT:
        yield Figure(f"driver_us_{n}", f"CPU us of the driver per rollout, actors: {n}", Better.LOWER, digits=0)
    yield Figure("growth", f"  with {FLAT[-1]} actors in terms of {FLAT[0]}", Better.LOWER)
    yield Figure("door_rate", "calls per second through the door", Better.HIGHER, digits=0)
    yield Figure("door_us", "  CPU us of the driver per call", Better.LOWER, digits=0)
    yield Figure("cpu_seconds", "CPU seconds of the driver")
    yield Figure("peak_memory_mb", "peak memory of the driver, MB", Better.LOWER, digits=0)


@dataclass(frozen=True, slots=True)
class ClusterCalls:
    """A round measures all of it, on a cluster that is started once."""

    name: str
    what: str
    calls: int = 500
    rollouts: int = 2_000
    tokens: int = 3_500
    door_calls: int = 4_000
    in_flight: int = 64
    threads: int = 1
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_cluster"
    peer: None = None
    figures: tuple[Figure, ...] = tuple(_figures())

    def prepare(self, folder: Path, places: Places) -> Prepared:
        names = ("calls", "rollouts", "tokens", "door_calls", "in_flight")
        spec = {name: getattr(self, name) for name in names}
        return Prepared(ours={**spec, "actors": ACTORS, "folder": str(folder)})

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        local, through, bare = (answer[f"{way}_call"] for way in ("local", "actor", "bare"))
        driver = {n: answer["driver_us"][str(n)] for n in FLAT}
        return {
            "added_p50_ms": 1e3 * (statistics.median(through) - statistics.median(local)),
            "added_p99_ms": 1e3 * (_slowest(through) - _slowest(local)),
            "bare_p50_ms": 1e3 * statistics.median(bare),
            "bare_p99_ms": 1e3 * _slowest(bare),
            **{f"rate_{n}": answer["rate"][str(n)] for n in RATED},
            **{f"driver_us_{n}": cpu for n, cpu in driver.items()},
            "growth": driver[FLAT[-1]] / driver[FLAT[0]],
            "door_rate": answer["door_rate"],
            "door_us": answer["door_us"],
            "seconds": answer["seconds"],
            "cpu_seconds": answer["cpu_seconds"],
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }


def _slowest(seconds: list[float]) -> float:
    """What 99 in 100 calls do not exceed."""
    return statistics.quantiles(seconds, n=100)[98]
