"""How many rollouts were under way at each moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_run import add, answered

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.runs.step_work import Work, open_at, work_lanes
from loopwright.types import Group, GroupStatus, RolloutKey, Timing

SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)).map(lambda pair: (min(pair), max(pair))), max_size=30)


def test_pieces_count_what_is_open_in_them() -> None:
    assert open_at([(0.0, 2.0), (1.0, 2.5)], 0.0, 4.0, cells=4) == (1.0, 2.0, 0.5, 0.0)
    assert open_at([(1.0, 2.0)], 3.0, 3.0, cells=2) == (0.0, 0.0)
    assert open_at([], 0.0, 1.0, cells=2) == (0.0, 0.0)


@given(SPANS)
def test_no_time_is_lost(spans: list[tuple[float, float]]) -> None:
    cells = open_at(spans, 0.0, 100.0, cells=40)
    assert sum(cells) * 2.5 == pytest.approx(sum(end - start for start, end in spans), abs=1e-3)
    assert max(cells) <= len(spans) + 1e-6


async def test_who_makes_what_no_step_trains_is_not_idle(tmp_path: Path) -> None:
    """Step 1 takes the first of 10 seconds for its own group; then one is filtered, and the next step's is made."""
    database = tmp_path / "rollouts.sqlite"
    async with SqliteStorage(database) as storage:

        async def make(draw: int, started: float, seconds: float) -> Group:
            task = add(draw, 5)
            row = await storage.draw("train", draw, task, 0)
            made = replace(answered(RolloutKey("train", draw, 0), task, "7"), timing=Timing(started, seconds))
            await storage.put(row, made)
            await storage.mark([("train", draw)], GroupStatus.FILTERED if draw == 1 else GroupStatus.COMPLETED)
            return Group("train", draw, task, (made,))

        own = await make(0, 100.0, 1.0)
        await make(1, 101.0, 4.0)
        await storage.consume([own], 1)
        later = await make(2, 105.0, 9.0)
        await storage.consume([later], 2)
    (lane,) = work_lanes(database, [1], 100.0, 110.0)
    assert (lane.work, lane.rollouts, lane.idle) == (Work.GENERATE, 3, 0.0)
    (lane,) = work_lanes(database, [2], 110.0, 120.0)
    assert lane.rollouts == 1
    assert lane.idle == pytest.approx(0.6, abs=0.01)
