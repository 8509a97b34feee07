"""How many rollouts were being made and judged at each moment of a few train steps, worker by worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loopwright.buffer.storage.schema import snapshot
from loopwright.runs.step_groups import newest_place, place_of_step

CELLS = 240
"""Into how many pieces the time is divided."""
MOST_WORKERS = 64
"""With more workers, all are one lane: nobody reads hundreds."""


class Work(StrEnum):
    """What was done with rollouts."""

    GENERATE = "generate"
    JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker, or all. `cells` is the mean number of rollouts in each piece of the time, `idle` the share of the
    pieces in which there was none."""

    worker: str | None
    work: Work
    rollouts: int
    cells: tuple[float, ...]

    @property
    def idle(self) -> float:
        return sum(cell == 0 for cell in self.cells) / len(self.cells)


Span = tuple[float, float]


def work_lanes(database: Path, steps: Sequence[int], begin: float, end: float) -> tuple[Lane, ...]:
    """The lanes of the rollouts that were under way between two moments, while these steps were made: also of those
    that a later step trained, or none."""
    generating, judging = dict[str | None, list[Span]](), list[Span]()
    with snapshot(database) as db:
        # From one step before to one step behind them, because rollouts are stored when they end.
        first = place_of_step(db, min(steps) - 2) or 0
        last = place_of_step(db, max(steps) + 1) or newest_place(db)
        for worker, started, agent, judged, judge in db.execute(
            "SELECT worker, started, agent_seconds, coalesce(judged_at, started + agent_seconds), judge_seconds"
            " FROM trail JOIN rollouts USING (task_set, draw, round, member, attempt)"
            " WHERE place > ? AND place <= ? AND event = 'stored'",
            (first, last),
        ):
            if started < end and started + agent > begin:
                generating.setdefault(worker, []).append((started, started + agent))
            if judge and judged < end and judged + judge > begin:
                judging.append((judged, judged + judge))
    if len(generating) > MOST_WORKERS:
        generating = {None: [span for spans in generating.values() for span in spans]}
    lanes = [
        Lane(worker, Work.GENERATE, len(spans), open_at(spans, begin, end))
        for worker, spans in sorted(generating.items(), key=lambda one: one[0] or "")
    ]
    if judging:
        lanes.append(Lane(None, Work.JUDGE, len(judging), open_at(judging, begin, end)))
    return tuple(lane for lane in lanes if any(lane.cells))


def open_at(spans: Iterable[Span], begin: float, end: float, cells: int = CELLS) -> tuple[float, ...]:
    """The mean number of open spans in each of the equal pieces from `begin` to `end`."""
    if end <= begin:
        return (0.0,) * cells
    edges = np.linspace(begin, end, cells + 1)
    both = np.array(list(spans), float).reshape(-1, 2)
    # The time that spans have been open up to an edge; what happens in a piece is the difference of its edges.
    sums = _open_until(np.sort(both[:, 0]), edges) - _open_until(np.sort(both[:, 1]), edges)
    return tuple(np.maximum(0.0, np.diff(sums) / ((end - begin) / cells)).round(6).tolist())


def _open_until(moments: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each edge the sum of (edge - moment) over the moments before it."""
    before = np.searchsorted(moments, edges)
    sums = np.concatenate([[0.0], np.cumsum(moments - edges[0])])
    until: npt.NDArray[np.float64] = before * (edges - edges[0]) - sums[before]
    return until
