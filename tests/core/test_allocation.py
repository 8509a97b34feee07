"""Batches split by weight: largest remainder in one step, and over many steps every weight gets its due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.allocation import shares_of_step

WEIGHTS = st.lists(st.integers(1, 60).map(lambda n: n / 20), min_size=1, max_size=4)


@given(st.integers(1, 9), WEIGHTS)
def test_every_step_is_full_and_every_set_stays_within_one_of_its_exact_share(total: int, weights: list[float]) -> None:
    given_out = [0] * len(weights)
    for step in range(1, 40):
        shares = shares_of_step(step, total, weights)
        assert sum(shares) == total
        assert min(shares) >= 0
        given_out = [sofar + share for sofar, share in zip(given_out, shares, strict=True)]
        for got, weight in zip(given_out, weights, strict=True):
            assert abs(got - step * total * weight / sum(weights)) < 1


@given(st.integers(0, 200), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_the_first_step_stays_next_to_its_quotas(total: int, weights: list[float]) -> None:
    shares = shares_of_step(1, total, weights)
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
        (8, [0.7, 0.2, 0.1], (6, 1, 1)),
    ],
)
def test_one_step_is_a_largest_remainder(total: int, weights: list[float], shares: tuple[int, ...]) -> None:
    assert shares_of_step(1, total, weights) == shares


def test_a_small_weight_gets_its_turn() -> None:
    """A tenth of a batch of four rounds to nothing, and is still four groups in ten steps."""
    rare = [shares_of_step(step, 4, [0.9, 0.1])[1] for step in range(1, 11)]
    assert rare == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]


def test_splits_repeat_when_every_share_was_whole() -> None:
    weights = [5.0, 3.0, 2.0]
    period = [shares_of_step(step, 4, weights) for step in range(1, 6)]
    assert [sum(shares) for shares in zip(*period, strict=True)] == [10, 6, 4]
    assert [shares_of_step(step, 4, weights) for step in range(100_001, 100_006)] == period
