"""Cuts the plan of a step into the parts of several ranks, whose sums are those of the whole.

Each rank gets whole rows, so that a prompt is computed once for the answers behind it. The dearest row goes to the rank
with the least to do. A row that is dearer than a fair share is cut between its chains first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from loopwright.core.packing import Packed, micro_batches
from loopwright.learn.plan import MiniBatch, Rows, StepPlan

T = TypeVar("T")

UNEVEN = 1.1
"""A row is cut if it costs more than this times a fair share."""


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row costs: so much for each token, and so much for each pair of tokens that see each other."""

    per_token: float
    per_pair: float

    def of(self, row: Packed) -> float:
        pairs = row.prefix**2 / 2 + sum(rest * (row.prefix + rest / 2) for rest in row.rests)
        return self.per_token * row.tokens + self.per_pair * pairs


def cut_plan(plan: StepPlan, ranks: int, cost: RowCost, max_tokens: int) -> list[StepPlan]:
    """The part of each rank. It has the rank's own samples only, and no rollouts, which are of no use to it."""
    parts = [_cut_batch(batch, ranks, cost, max_tokens) for batch in plan.mini_batches]
    return [replace(plan, mini_batches=tuple(batch[rank] for batch in parts), rollouts=()) for rank in range(ranks)]


def _cut_batch(batch: MiniBatch, ranks: int, cost: RowCost, max_tokens: int) -> list[MiniBatch]:
    rollouts = [_own(rows, batch.samples, max_tokens) for rows in _shared_out(batch.rollouts, ranks, cost)]
    imitation = [_own(rows, batch.examples, max_tokens) for rows in _shared_out(batch.imitation, ranks, cost)]
    most = max(len(micros) for _, micros in rollouts), max(len(micros) for _, micros in imitation)
    return [
        MiniBatch(
            samples,
            micros,
            examples,
            imitated,
            batch.example_count,
            idle_rollouts=most[0] - len(micros),
            idle_imitation=most[1] - len(imitated),
        )
        for (samples, micros), (examples, imitated) in zip(rollouts, imitation, strict=True)
    ]


def _shared_out(micros: Sequence[Rows], ranks: int, cost: RowCost) -> list[list[Packed]]:
    """The rows of each rank, dearest first."""
    rows = sorted((row for micro in micros for row in micro), key=cost.of, reverse=True)
    fair = UNEVEN * sum(map(cost.of, rows)) / ranks
    rows = sorted((part for row in rows for part in _halved(row, fair, cost)), key=cost.of, reverse=True)
    shares: list[list[Packed]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for row in rows:
        least = min(range(ranks), key=loads.__getitem__)
        shares[least].append(row)
        loads[least] += cost.of(row)
    return shares


def _halved(row: Packed, fair: float, cost: RowCost) -> list[Packed]:
    """The row, in so many parts that none costs more than `fair` or that each has one chain."""
    if cost.of(row) <= fair or len(row.chains) == 1:
        return [row]
    middle = len(row.chains) // 2
    halves = (
        Packed(row.prefix, row.chains[:middle], row.rests[:middle]),
        Packed(row.prefix, row.chains[middle:], row.rests[middle:]),
    )
    return [part for half in halves for part in _halved(half, fair, cost)]


def _own(rows: Sequence[Packed], items: Sequence[T], max_tokens: int) -> tuple[tuple[T, ...], tuple[Rows, ...]]:
    """The items that these rows name, and the rows in micro-batches, which name them by their new places."""
    chosen = sorted({index for row in rows for index in row.chains})
    place = {index: number for number, index in enumerate(chosen)}
    named = [Packed(row.prefix, tuple(place[index] for index in row.chains), row.rests) for row in rows]
    micros = tuple(map(tuple, micro_batches(named, max_tokens)))
    return tuple(items[index] for index in chosen), micros
