"""The arithmetic of a benchmark: medians and ratios, what a step costs, and how long the machine would take for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import Better, Figure, Summary, advantage, summarise
from benchmarks.flops import layers_of
from benchmarks.work import GroupCounts, Pace, Phase, Rows, total

SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
}
SECONDS = Figure("seconds", "seconds", Better.LOWER)
RATE = Figure("rate", "rate", Better.HIGHER)


def rounds(key: str, *values: float) -> list[dict[str, float]]:
    return [{key: value} for value in values]


def test_a_token_of_smollm2_costs_what_its_parameters_say():
    layers = layers_of(SMOLLM2)
    assert layers.body_flops == 2 * 106_168_320
    assert layers.head_flops / 1e9 == pytest.approx(0.057, abs=5e-4)
    assert (layers.body_flops + layers.head_flops) / 1e9 == pytest.approx(0.27, abs=2e-3)
    assert len(layers.body) == 7 * 30


def test_the_head_size_follows_from_the_hidden_size_when_it_is_not_given():
    without = {name: value for name, value in SMOLLM2.items() if name != "head_dim"}
    assert layers_of(without) == layers_of(SMOLLM2)


def test_a_median_ignores_one_bad_round_and_the_spread_shows_it():
    assert summarise(rounds("seconds", 3.0, 1.0, 90.0), "seconds") == Summary(3.0, 1.0, 90.0)


def test_a_ratio_above_one_means_that_ours_is_better():
    assert advantage(SECONDS, rounds("seconds", 1, 2, 3), rounds("seconds", 8, 8, 9)) == Summary(4.0, 3.0, 8.0)
    assert advantage(RATE, rounds("rate", 400), rounds("rate", 200)) == Summary(2.0, 2.0, 2.0)


def test_what_is_not_about_better_has_no_ratio():
    figure = Figure("seconds", "seconds")
    assert advantage(figure, rounds("seconds", 1), rounds("seconds", 1)) is None


@given(st.lists(st.tuples(st.floats(0.01, 1e3), st.floats(0.01, 1e3)), min_size=1))
def test_swapping_the_sides_inverts_a_ratio_of_one_round_and_the_median_lies_within_the_spread(pairs):
    ours, peer = ([{"seconds": pair[i]} for pair in pairs] for i in (0, 1))
    there, back = advantage(SECONDS, ours, peer), advantage(SECONDS, peer, ours)
    assert there is not None
    assert back is not None
    assert there.median * back.median == pytest.approx(1)
    summary = summarise(ours, "seconds")
    assert summary.lowest <= summary.median <= summary.highest


def test_a_prompt_counts_once_per_group_and_the_last_token_is_never_fed():
    group = GroupCounts(prompt_tokens=48, sampled=(10, 16), rewards=(0.0, 1.0))
    assert group.work == {
        Phase.PREFILL: Rows(48, 1),
        Phase.DECODE: Rows(24, 24),
        Phase.TRAIN: Rows(48 + 24, 1 + 24),
    }


def test_a_group_of_equal_rewards_has_nothing_to_train():
    group = GroupCounts(prompt_tokens=48, sampled=(10, 16), rewards=(0.0, 0.0))
    assert group.work[Phase.TRAIN] == Rows()
    assert group.work[Phase.DECODE] == Rows(24, 24)


def test_the_work_of_a_step_is_that_of_its_groups():
    group = GroupCounts(prompt_tokens=10, sampled=(3, 3), rewards=(0.0, 1.0))
    assert total([group.work] * 3) == {
        Phase.PREFILL: Rows(30, 3),
        Phase.DECODE: Rows(12, 12),
        Phase.TRAIN: Rows(42, 15),
    }


def test_the_limit_is_the_work_at_the_measured_pace():
    measured = {Phase.DECODE: Rows(64, 64), Phase.TRAIN: Rows(1000, 500)}
    pace = Pace.of({"decode": {"body": 0.64, "head": 0.064}, "train": {"body": 10.0, "head": 1.0}}, measured)
    assert pace.seconds({Phase.DECODE: Rows(100, 100)}) == pytest.approx(1.1)
    assert pace.seconds({Phase.TRAIN: Rows(200, 100)}) == pytest.approx(2.2)
    # Work that does not occur needs no pace.
    assert pace.seconds({Phase.PREFILL: Rows(), Phase.DECODE: Rows(100, 0)}) == pytest.approx(1.0)
