"""Advantages: the golden values, and zeros instead of noise for a group that teaches nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loopwright.core.advantage import ADVANTAGES, INDISTINGUISHABLE, Advantage, grpo, grpo_no_std

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)

every_advantage = pytest.mark.parametrize("advantage", ADVANTAGES.values(), ids=ADVANTAGES.keys())
rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=9)

GOLDEN = [
    (grpo, (1, 0, 0, 0), (1.499997, -0.499999, -0.499999, -0.499999)),
    (grpo, (1, 1, 0, 0.5), (0.783348, 0.783348, -1.305580, -0.261116)),
    (grpo, (1, 1, 1, 1), (0, 0, 0, 0)),
    (grpo_no_std, (1, 0, 0, 0), (0.75, -0.25, -0.25, -0.25)),
    (grpo_no_std, (1, 1, 0, 0.5), (0.375, 0.375, -0.625, -0.125)),
    (grpo_no_std, (1, 1, 1, 1), (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("advantage", "given_rewards", "expected"), GOLDEN)
def test_golden_values(advantage: Advantage, given_rewards: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert advantage(given_rewards) == pytest.approx(expected, abs=1e-6)


@every_advantage
@pytest.mark.parametrize("reward", [0.0, 1.0, -3.5, 0.1, 1e300])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 8])
def test_equals_and_a_lone_survivor_get_exactly_zero(advantage: Advantage, reward: float, size: int) -> None:
    assert advantage((reward,) * size) == (0.0,) * size


@every_advantage
@pytest.mark.parametrize("size", [1.0, 100.0, -100.0, 0.0])
def test_rounding_noise_is_not_blown_up(advantage: Advantage, size: float) -> None:
    noisy = (size, size, size, size + 1e-7 * max(1.0, abs(size)))
    assert advantage(noisy) == (0.0, 0.0, 0.0, 0.0)


@every_advantage
def test_a_small_but_real_difference_counts(advantage: Advantage) -> None:
    assert all(advantage((1.0, 1.0, 1.0, 1.0 + 10 * INDISTINGUISHABLE)))


@every_advantage
@BOUNDED
@given(given_rewards=rewards)
def test_advantages_sum_to_zero_and_keep_the_order(advantage: Advantage, given_rewards: list[float]) -> None:
    advantages = advantage(given_rewards)
    assert len(advantages) == len(given_rewards)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-9)
    ranked = sorted(range(len(advantages)), key=lambda i: given_rewards[i])
    assert all(advantages[a] <= advantages[b] for a, b in pairwise(ranked))


@every_advantage
@BOUNDED
@given(given_rewards=rewards, shift=st.floats(-10, 10))
def test_a_shift_of_all_rewards_changes_nothing(advantage: Advantage, given_rewards: list[float], shift: float) -> None:
    assume(max(given_rewards) - min(given_rewards) > 1e-3)
    assert advantage([r + shift for r in given_rewards]) == pytest.approx(advantage(given_rewards), abs=1e-6)


@BOUNDED
@given(given_rewards=rewards, scale=st.floats(0.5, 100))
def test_scale_shows_in_dr_grpo_and_not_in_grpo(given_rewards: list[float], scale: float) -> None:
    assume(max(given_rewards) - min(given_rewards) > 1e-2)
    scaled = [r * scale for r in given_rewards]
    assert grpo_no_std(scaled) == pytest.approx([a * scale for a in grpo_no_std(given_rewards)], abs=1e-9)
    # The std is above 1e-2 / 9, so the epsilon of 1e-6 moves an advantage by less than a thousandth.
    assert grpo(scaled) == pytest.approx(grpo(given_rewards), rel=2e-3)


@BOUNDED
@given(given_rewards=rewards)
def test_grpo_has_unit_sample_variance(given_rewards: list[float]) -> None:
    assume(max(given_rewards) - min(given_rewards) > 0.1)
    assert math.fsum(a * a for a in grpo(given_rewards)) == pytest.approx(len(given_rewards) - 1, rel=1e-3)


def test_squares_of_large_rewards_do_not_overflow() -> None:
    assert grpo((1e200, 0, 0, 0)) == pytest.approx((1.5, -0.5, -0.5, -0.5))


@every_advantage
@BOUNDED
@given(given_rewards=st.lists(st.floats(-1e300, 1e300), max_size=9))
def test_finite_rewards_never_give_nan_or_infinity(advantage: Advantage, given_rewards: list[float]) -> None:
    assert all(math.isfinite(a) for a in advantage(given_rewards))


@BOUNDED
@given(given_rewards=st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=9))
def test_grpo_is_bounded_whatever_the_rewards(given_rewards: list[float]) -> None:
    """No single member can have more than (K - 1) / sqrt(K)."""
    size = len(given_rewards)
    assert max(map(abs, grpo(given_rewards))) <= (size - 1) / math.sqrt(size) + 1e-9
