"""Staleness arithmetic: version v may feed train steps v+1 .. v+horizon, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.staleness import horizon, staleness, trainable_at

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)


def test_on_policy_is_zero() -> None:
    assert staleness(version=0, step=1) == 0
    assert staleness(version=3, step=6) == 2


@pytest.mark.parametrize(("max_staleness", "interval", "steps"), [(0, 1, 1), (2, 1, 3), (0, 4, 4), (2, 4, 12)])
def test_horizon_by_example(max_staleness: int, interval: int, steps: int) -> None:
    assert horizon(max_staleness, interval) == steps


@BOUNDED
@given(st.integers(0, 50), st.integers(0, 5), st.integers(1, 5), st.integers(-5, 120))
def test_exactly_the_steps_within_the_horizon_may_train(
    version: int, max_staleness: int, interval: int, step: int
) -> None:
    allowed = range(version + 1, version + horizon(max_staleness, interval) + 1)
    assert trainable_at(version, step, max_staleness, interval) == (step in allowed)
