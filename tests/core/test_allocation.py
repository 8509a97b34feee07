"""Largest remainder: every share is within one of its quota, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.allocation import split_by_weight


@given(st.integers(0, 200), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_add_up_and_stay_next_to_their_quota(total: int, weights: list[float]) -> None:
    shares = split_by_weight(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1 + 1e-9


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (8, [1.0], (8,)),
        (8, [1.0, 1.0], (4, 4)),
        (7, [1.0, 1.0, 1.0], (3, 2, 2)),
        (6, [0.1, 0.2, 0.3], (1, 2, 3)),
        (5, [3.0, 1.0, 1.0], (3, 1, 1)),
        (1, [0.1, 0.1, 0.1], (1, 0, 0)),
    ],
)
def test_known_splits(total: int, weights: list[float], shares: tuple[int, ...]) -> None:
    assert split_by_weight(total, weights) == shares
