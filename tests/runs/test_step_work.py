"""How many rollouts were under way at each moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.runs.step_work import open_at

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
