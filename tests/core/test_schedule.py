"""The learning rate over a run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.schedule import learning_rate
from loopwright.types import Schedule

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)

counts = {"steps": st.integers(1, 60), "warmup": st.integers(0, 20)}


def rates(schedule: Schedule, *, steps: int, warmup: int, peak: float = 2.0) -> list[float]:
    """The rates of steps 1 .. steps."""
    return [
        learning_rate(step, peak=peak, schedule=schedule, warmup=warmup, steps=steps) for step in range(1, steps + 1)
    ]


def test_shapes_by_example() -> None:
    assert rates(Schedule.CONSTANT, steps=4, warmup=0) == [2.0] * 4
    assert rates(Schedule.LINEAR, steps=4, warmup=0) == pytest.approx([2.0, 1.5, 1.0, 0.5])
    assert rates(Schedule.COSINE, steps=4, warmup=0) == pytest.approx(
        [2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)]
    )
    assert rates(Schedule.CONSTANT, steps=5, warmup=3) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])


@pytest.mark.parametrize("schedule", Schedule)
@BOUNDED
@given(**counts)
def test_every_step_of_a_run_learns_and_none_exceeds_the_peak(schedule: Schedule, steps: int, warmup: int) -> None:
    assert all(0 < rate <= 2.0 for rate in rates(schedule, steps=steps, warmup=warmup))


@pytest.mark.parametrize("schedule", Schedule)
@BOUNDED
@given(**counts)
def test_it_rises_through_the_warm_up_to_the_peak_and_never_again(schedule: Schedule, steps: int, warmup: int) -> None:
    run = rates(schedule, steps=steps, warmup=warmup)
    rise, rest = run[:warmup], run[warmup:]
    assert rise == sorted(set(rise))
    assert rest == sorted(rest, reverse=True)
    assert rest[:1] == [2.0] * (steps > warmup)


@pytest.mark.parametrize("schedule", [Schedule.LINEAR, Schedule.COSINE])
@BOUNDED
@given(**counts)
def test_zero_is_reached_when_the_run_is_over(schedule: Schedule, steps: int, warmup: int) -> None:
    for beyond in (1, 5):
        after = max(steps, warmup) + beyond
        rate = learning_rate(after, peak=2.0, schedule=schedule, warmup=warmup, steps=steps)
        assert rate == pytest.approx(0, abs=1e-12) or warmup >= steps
