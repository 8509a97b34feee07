"""Metrics against brute force: what a formula says must be what counting all choices says."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loopwright.core.evaluation import (
    accuracy,
    agreed_score,
    averaged,
    chance_of_one,
    majority_at_k,
    mean_reward,
    pass_at_k,
)
from loopwright.errors import MetricError
from loopwright.types import Failed, FailureCause, Reward, Rollout, RolloutKey, Scored, Task, TaskResult, Timing

TASK = Task.ask("t", "?")
LOST = Failed(FailureCause.JUDGE, "KeyError", "judge.py:3")

scores = st.sampled_from([0.0, 0.5, 1.0])
rewards = st.one_of(scores.map(Scored), st.just(LOST))
samples = st.builds(Scored, scores, answer=st.sampled_from(["a", "b", "c", None]))


def result(rewards: Sequence[Reward]) -> TaskResult:
    return TaskResult(
        TASK, tuple(Rollout(RolloutKey("s", 0, i), TASK, None, reward, Timing(0.0)) for i, reward in enumerate(rewards))
    )


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(1, 9))
def test_pass_at_k_is_the_share_of_all_choices_with_a_right_one(right: list[bool], k: int) -> None:
    assume(k <= len(right))
    choices = [any(choice) for choice in combinations(right, k)]
    assert chance_of_one(len(right), sum(right), k) == pytest.approx(statistics.fmean(choices))


@given(st.lists(samples, min_size=1, max_size=7))
def test_the_majority_is_the_answer_that_no_other_beats(samples: list[Scored]) -> None:
    votes = [sample.answer for sample in samples if sample.answer is not None]
    # The slow way: the first answer that occurs at least as often as every other.
    winner = next((vote for vote in votes if all(votes.count(vote) >= votes.count(other) for other in votes)), None)
    chosen = [s.value for s in samples if s.answer == winner] if votes else [s.value for s in samples]
    assert agreed_score(samples) == pytest.approx(statistics.fmean(chosen))


def test_a_tie_goes_to_the_answer_seen_first() -> None:
    one, two, none = Scored(1.0, answer="1"), Scored(0.0, answer="2"), Scored(0.0)
    assert agreed_score([one, two]) == 1.0
    assert agreed_score([two, one]) == 0.0
    assert agreed_score([none, none, one]) == 1.0, "who gives no answer has no vote"
    assert agreed_score([one, Scored(0.5, answer="1"), two]) == 0.75, "a judger that is not sure of itself"


@given(st.lists(st.lists(rewards, max_size=5).map(result), max_size=6), st.integers(1, 5))
def test_failed_samples_count_nowhere_and_every_number_says_over_how_many_tasks(
    tasks: list[TaskResult], k: int
) -> None:
    clean = [result(task.scored) for task in tasks]
    for metric, enough in (
        (mean_reward, 1),
        (lambda found: accuracy(found, correct_at=1.0), 1),
        (lambda found: pass_at_k(found, k=k, correct_at=0.5), k),
    ):
        numbers = metric(tasks)
        assert numbers == metric(clean), "failures made a difference"
        (name,) = {name.partition("/")[0] for name in numbers}
        assert numbers[f"{name}/tasks"] == sum(len(task.scored) >= enough for task in tasks)
        assert (name in numbers) == (numbers[f"{name}/tasks"] > 0)
        assert 0.0 <= numbers.get(name, 0.0) <= 1.0


def test_tasks_weigh_the_same_however_many_samples_they_have() -> None:
    tasks = [result([Scored(1.0)]), result([Scored(0.0), Scored(0.0), Scored(0.5), LOST]), result([LOST])]
    numbers = mean_reward(tasks)
    assert numbers["reward"] == pytest.approx((1 + 0.5 / 3) / 2)
    assert numbers["reward/tasks"] == 2
    assert accuracy(tasks, correct_at=0.5)["accuracy"] == pytest.approx((1 + 1 / 3) / 2)
    assert pass_at_k(tasks, k=3, correct_at=0.5) == {"pass@3": 1.0, "pass@3/tasks": 1.0}


def test_the_standard_error_is_that_of_the_mean_over_tasks() -> None:
    assert averaged("x", [1.0, 0.0, 0.0, 1.0])["x/stderr"] == pytest.approx(statistics.stdev([1, 0, 0, 1]) / 2)
    assert averaged("x", [1.0]) == {"x": 1.0, "x/tasks": 1.0}
    assert averaged("x", []) == {"x/tasks": 0.0}


def test_the_majority_is_taken_of_the_first_k_scored_samples() -> None:
    samples: list[Reward] = [LOST, Scored(0.0, answer="2"), Scored(1.0, answer="1"), Scored(1.0, answer="1")]
    assert majority_at_k([result(samples)], k=2)["majority@2"] == 0.0
    assert majority_at_k([result(samples)], k=3)["majority@3"] == 1.0
    assert majority_at_k([result(samples)], k=4) == {"majority@4/tasks": 0.0}


def test_a_majority_of_scores_without_answers_is_an_error() -> None:
    with pytest.raises(MetricError, match="no score of 2 carries one"):
        majority_at_k([result([Scored(1.0), LOST]), result([Scored(0.0)])], k=1)
    assert majority_at_k([result([LOST])], k=1) == {"majority@1/tasks": 0.0}, "nothing was scored: nothing to tell"
