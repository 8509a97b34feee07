"""Samples into the buffer and out of it: ours, where a put has returned when it is committed, beside TransferQueue,
which keeps them in the memory of its processes.

A sample is one sequence of 3,500 tokens: ids, mask, logprobs and versions, 13 bytes a token in memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.setting import Peer, Places, Prepared, Spec

TOKENS = 3500
BATCHES = (1, 64)

TRANSFER_QUEUE = Peer("TransferQueue", "benchmarks.workers.transferqueue_buffer", environment=".peers/transferqueue")

Rates = Mapping[str, float]
"""Samples per second, by figure."""


def _figures() -> Iterator[Figure]:
    for batch in BATCHES:
        how = "one by one" if batch == 1 else f"{batch} at once"
        for verb in ("puts", "gets"):
            yield Figure(f"{verb}_{batch}", f"{verb} per second, {how}", Better.HIGHER, digits=0)
            yield Figure(f"limit_share_{verb}_{batch}", "  share of the limit", digits=3)
    yield Figure("peak_memory_mb", "peak memory of the caller, MB", digits=0)


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """The limit: the same bytes as rows of a SQLite table without anything round it, one commit per batch."""

    spec: Spec
    module: str = "benchmarks.workers.sqlite_rows"

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> RowsLimit:
        rounds = [rates(answer) for answer in answers]
        return RowsLimit({name: statistics.median(one[name] for one in rounds) for name in rounds[0]})


@dataclass(frozen=True, slots=True)
class RowsLimit:
    pace: Rates

    def as_json(self) -> dict[str, Any]:
        return dict(self.pace)

    @property
    def line(self) -> str:
        speeds = ", ".join(f"{name} {rate:,.0f}" for name, rate in self.pace.items())
        return f"the same bytes as plain rows of SQLite on this machine, per second: {speeds}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """`samples` of them in each of the four passes of a round."""

    name: str
    what: str
    samples: int = 384
    threads: int = 2
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_buffer"
    peer: Peer = TRANSFER_QUEUE
    figures: tuple[Figure, ...] = tuple(_figures())

    def prepare(self, folder: Path, places: Places) -> Prepared:
        spec = {"folder": str(folder), "tokens": TOKENS, "samples": self.samples, "batches": BATCHES}
        return Prepared(ours=spec, peer=spec, limit=RowsPlan(spec))

    def round(self, answer: Mapping[str, Any], pace: Rates) -> Round:
        own = rates(answer)
        shares = {f"limit_share_{name}": rate / pace[name] for name, rate in own.items()}
        return {**own, **shares, "peak_memory_mb": answer["peak_memory"] / 1e6}


def rates(answer: Mapping[str, Any]) -> dict[str, float]:
    """Samples per second from a worker's answer."""
    passes = {"puts": answer["put_seconds"], "gets": answer["get_seconds"]}
    return {
        f"{verb}_{batch}": answer["samples"] / seconds
        for verb, by_batch in passes.items()
        for batch, seconds in by_batch.items()
    }
