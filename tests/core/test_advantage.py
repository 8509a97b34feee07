"""Advantages: golden values, references written another way, and zeros instead of noise where nothing is to learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loopwright.config import PlainAdvantage
from loopwright.core.advantage import (
    ADVANTAGES,
    INDISTINGUISHABLE,
    GroupAdvantage,
    Scores,
    grpo,
    grpo_no_std,
    opo,
    pass_at_k_advantage,
    per_group,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
    teaches_nothing,
)

BOUNDED = settings(max_examples=30)

WITHIN_GROUPS: dict[str, GroupAdvantage] = {
    "grpo": grpo,
    "grpo_no_std": grpo_no_std,
    "rloo": rloo,
    "opo": opo,
    "pass_at_2": partial(pass_at_k_advantage, k=2),
    "pass_at_4": partial(pass_at_k_advantage, k=4),
}
every_group_advantage = pytest.mark.parametrize("advantage", WITHIN_GROUPS.values(), ids=WITHIN_GROUPS.keys())
every_advantage = pytest.mark.parametrize("advantage", ADVANTAGES.values(), ids=ADVANTAGES.keys())
rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=9)


def scored(values: Sequence[float], lengths: Sequence[int] | None = None) -> Scores:
    """A group with these rewards; without lengths, all answers have 5 tokens."""
    return Scores(tuple(values), tuple(lengths or [5] * len(values)))


@st.composite
def batches(draw: st.DrawFn) -> list[Scores]:
    """Groups of different sizes and lengths, some of one member, some of equals, some members without a token."""
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 5))
        values = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, -2.0, 7.5]), min_size=size, max_size=size))
        groups.append(scored(values, draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))))
    return groups


GOLDEN = [
    (grpo, (1, 0, 0, 0), (1.499997, -0.499999, -0.499999, -0.499999)),
    (grpo, (1, 1, 0, 0.5), (0.783348, 0.783348, -1.305580, -0.261116)),
    (grpo, (1, 1, 1, 1), (0, 0, 0, 0)),
    (grpo_no_std, (1, 0, 0, 0), (0.75, -0.25, -0.25, -0.25)),
    (grpo_no_std, (1, 1, 0, 0.5), (0.375, 0.375, -0.625, -0.125)),
    (grpo_no_std, (1, 1, 1, 1), (0, 0, 0, 0)),
    (rloo, (1, 0, 0, 0), (1, -1 / 3, -1 / 3, -1 / 3)),
    (opo, (1, 0, 0, 0), (0.7, -0.3, -0.3, -0.3)),
    (partial(pass_at_k_advantage, k=2), (1, 0, 0, 0), (1, 0, 0, 0)),
    (partial(pass_at_k_advantage, k=2), (1, 1, 0, 0.5), (0.5, 0.5, 0, 1 / 6)),
    (partial(pass_at_k_advantage, k=4), (3, 1, 0, 2), (1, 0, 0, 0)),
]


@pytest.mark.parametrize(("advantage", "given_rewards", "expected"), GOLDEN)
def test_golden_values(
    advantage: GroupAdvantage, given_rewards: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    assert advantage(scored(given_rewards, (3, 1, 2, 4))) == pytest.approx(expected, abs=1e-6)


def test_the_config_offers_every_advantage() -> None:
    (kind,) = [field.annotation for name, field in PlainAdvantage.model_fields.items() if name == "kind"]
    assert set(get_args(kind)) == set(ADVANTAGES)


@every_group_advantage
@pytest.mark.parametrize("reward", [0.0, 1.0, -3.5, 0.1, 1e300])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 8])
def test_equals_and_a_lone_survivor_get_exactly_zero(advantage: GroupAdvantage, reward: float, size: int) -> None:
    assert advantage(scored((reward,) * size, range(size))) == (0.0,) * size


@every_advantage
@pytest.mark.parametrize("size", [1.0, 100.0, -100.0, 0.0])
def test_rounding_noise_is_not_blown_up(advantage: Callable[..., Sequence[Sequence[float]]], size: float) -> None:
    noisy = scored((size, size, size, size + 1e-7 * max(1.0, abs(size))), (1, 2, 3, 4))
    assert advantage([noisy, noisy]) == [(0.0,) * 4] * 2


@every_group_advantage
def test_a_small_but_real_difference_counts(advantage: GroupAdvantage) -> None:
    assert advantage(scored((1.0, 1.0, 1.0, 1.0 + 10 * INDISTINGUISHABLE)))[3] > 0


@pytest.mark.parametrize("advantage", [grpo, grpo_no_std, rloo])
@BOUNDED
@given(given_rewards=rewards)
def test_what_one_gains_the_others_lose(advantage: GroupAdvantage, given_rewards: list[float]) -> None:
    assert math.fsum(advantage(scored(given_rewards))) == pytest.approx(0, abs=1e-9)


@every_group_advantage
@BOUNDED
@given(given_rewards=rewards)
def test_the_order_of_rewards_is_kept(advantage: GroupAdvantage, given_rewards: list[float]) -> None:
    advantages = advantage(scored(given_rewards, range(1, len(given_rewards) + 1)))
    assert len(advantages) == len(given_rewards)
    ranked = sorted(range(len(advantages)), key=lambda i: given_rewards[i])
    assert all(advantages[a] <= advantages[b] + 1e-12 for a, b in pairwise(ranked))


@every_group_advantage
@BOUNDED
@given(given_rewards=rewards, shift=st.floats(-10, 10))
def test_a_shift_of_all_rewards_changes_nothing(
    advantage: GroupAdvantage, given_rewards: list[float], shift: float
) -> None:
    assume(max(given_rewards) - min(given_rewards) > 1e-3)
    shifted = advantage(scored([r + shift for r in given_rewards]))
    assert shifted == pytest.approx(advantage(scored(given_rewards)), abs=1e-6)


@BOUNDED
@given(given_rewards=rewards, scale=st.floats(0.5, 100))
def test_scale_shows_in_dr_grpo_and_not_in_grpo(given_rewards: list[float], scale: float) -> None:
    assume(max(given_rewards) - min(given_rewards) > 1e-2)
    plain, scaled = scored(given_rewards), scored([r * scale for r in given_rewards])
    assert grpo_no_std(scaled) == pytest.approx([a * scale for a in grpo_no_std(plain)], abs=1e-9)
    # The std is above 1e-2 / 9, so the epsilon of 1e-6 moves an advantage by less than a thousandth.
    assert grpo(scaled) == pytest.approx(grpo(plain), rel=2e-3)


@BOUNDED
@given(given_rewards=rewards)
def test_grpo_has_unit_sample_variance(given_rewards: list[float]) -> None:
    assume(max(given_rewards) - min(given_rewards) > 0.1)
    assert math.fsum(a * a for a in grpo(scored(given_rewards))) == pytest.approx(len(given_rewards) - 1, rel=1e-3)


@BOUNDED
@given(given_rewards=rewards)
def test_rloo_leaves_one_out(given_rewards: list[float]) -> None:
    assume(not teaches_nothing(given_rewards))
    expected = [
        reward - np.mean([other for j, other in enumerate(given_rewards) if j != i])
        for i, reward in enumerate(given_rewards)
    ]
    assert rloo(scored(given_rewards)) == pytest.approx(expected, abs=1e-9)


@BOUNDED
@given(members=st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 50)), min_size=2, max_size=8))
def test_opo_weighs_the_mean_by_length(members: list[tuple[float, int]]) -> None:
    values, lengths = zip(*members, strict=True)
    assume(not teaches_nothing(values))
    tokens = np.repeat(values, lengths)
    assert opo(scored(values, lengths)) == pytest.approx(np.array(values) - tokens.mean(), abs=1e-9)


def test_opo_without_any_token_is_silent() -> None:
    assert opo(Scores((1.0, 0.0), (0, 0))) == (0.0, 0.0)


@BOUNDED
@given(given_rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0, -3.0, 2.5]), min_size=2, max_size=7), k=st.integers(2, 9))
def test_pass_at_k_is_the_mean_over_all_sets_of_siblings(given_rewards: list[float], k: int) -> None:
    assume(not teaches_nothing(given_rewards))
    size = min(k, len(given_rewards)) - 1
    expected = []
    for i, own in enumerate(given_rewards):
        siblings = given_rewards[:i] + given_rewards[i + 1 :]
        gains = [max(own, *others) - max(others) for others in combinations(siblings, size)]
        expected.append(sum(gains) / len(gains))
    assert pass_at_k_advantage(scored(given_rewards), k) == pytest.approx(expected, abs=1e-12)


@BOUNDED
@given(given_rewards=st.lists(st.floats(-5, 5), min_size=3, max_size=7), k=st.integers(2, 4))
def test_pass_at_k_is_what_the_best_of_k_loses_without_the_member(given_rewards: list[float], k: int) -> None:
    """In the mean over members: the expected best of k, minus the expected best of k - 1."""
    assume(k <= len(given_rewards))
    assume(not teaches_nothing(given_rewards))
    best = np.mean([max(chosen) for chosen in combinations(given_rewards, k)])
    fewer = np.mean([max(chosen) for chosen in combinations(given_rewards, k - 1)])
    total = math.fsum(pass_at_k_advantage(scored(given_rewards), k))
    assert total == pytest.approx(len(given_rewards) * (best - fewer), abs=1e-9)


def whitened(values: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """Over tokens, one by one, as verl does with a padded matrix."""
    tokens = np.repeat(np.array(values, np.float64), lengths)
    return [(value - tokens.mean()) / math.sqrt(tokens.var(ddof=1) + 1e-8) for value in values]


@BOUNDED
@given(groups=batches())
def test_reinforce_pp_is_whitened_over_the_tokens_of_the_batch(groups: list[Scores]) -> None:
    flat = [(r, n) for group in groups for r, n in zip(group.rewards, group.lengths, strict=True)]
    found = [a for members in reinforce_pp(groups) for a in members]
    if teaches_nothing([r for r, n in flat if n]):
        assert not any(found)
    else:
        assert found == pytest.approx(whitened(*zip(*flat, strict=True)), rel=1e-9, abs=1e-9)


@BOUNDED
@given(groups=batches())
def test_reinforce_pp_baseline_subtracts_the_groups_mean_first(groups: list[Scores]) -> None:
    centred = [r - float(np.mean(group.rewards)) for group in groups for r in group.rewards]
    lengths = [n for group in groups for n in group.lengths]
    found = reinforce_pp_baseline(groups)
    if teaches_nothing([c for c, n in zip(centred, lengths, strict=True) if n]):
        assert not any(a for members in found for a in members)
        return
    expected = whitened(centred, lengths)
    sizes = np.cumsum([0, *(len(group.rewards) for group in groups)])
    for group, members, start in zip(groups, found, sizes, strict=False):
        if teaches_nothing(group.rewards):
            assert not any(members), "a group of equals, or of one, teaches nothing"
        else:
            assert members == pytest.approx(expected[start : start + len(members)], rel=1e-9, abs=1e-9)


def test_reinforce_pp_learns_from_groups_of_one() -> None:
    good, bad = reinforce_pp([scored([1.0]), scored([0.0])])
    assert good[0] == -bad[0] > 0


def test_a_batch_of_one_token_is_silent() -> None:
    assert reinforce_pp([scored([1.0, 0.0], [1, 0])]) == [(0.0, 0.0)]
    assert reinforce_pp([]) == []


def test_squares_of_large_rewards_do_not_overflow() -> None:
    assert grpo(scored((1e200, 0, 0, 0))) == pytest.approx((1.5, -0.5, -0.5, -0.5))
    assert max(reinforce_pp([scored((1e200, 0, 0, 0))])[0]) == pytest.approx(whitened((1, 0, 0, 0), [5] * 4)[0])


@every_advantage
@BOUNDED
@given(groups=st.lists(st.lists(st.floats(-1e300, 1e300), max_size=9), max_size=3))
def test_finite_rewards_never_give_nan_or_infinity(
    advantage: Callable[..., Sequence[Sequence[float]]], groups: list[list[float]]
) -> None:
    found = advantage([scored(values) for values in groups])
    assert [len(members) for members in found] == [len(values) for values in groups]
    assert all(math.isfinite(a) for members in found for a in members)


@BOUNDED
@given(given_rewards=st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=9))
def test_grpo_is_bounded_whatever_the_rewards(given_rewards: list[float]) -> None:
    """No single member can have more than (K - 1) / sqrt(K)."""
    size = len(given_rewards)
    assert max(map(abs, grpo(scored(given_rewards)))) <= (size - 1) / math.sqrt(size) + 1e-9


def test_groups_are_independent_of_each_other_when_lifted() -> None:
    one, other = scored([1.0, 0.0]), scored([5.0, 5.0, 2.0])
    assert per_group(grpo)([one, other]) == [grpo(one), grpo(other)]
