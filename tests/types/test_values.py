"""Rewards, rollouts and groups: a failure has no number, and a group's numbers are its members'."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import get_args

import numpy as np
import pytest

from loopwright import types
from loopwright.errors import JudgeError
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    Group,
    Reward,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
    TokenChain,
    Unscored,
)

TASK = Task.ask("adding", "What is 12+7?", truth=19, level=2)


def chain(*versions: int) -> TokenChain:
    """A chain in which -1 stands for a token of context."""
    mask = np.array(versions) >= 0
    return TokenChain(np.arange(len(versions), dtype=np.int32), mask, np.where(mask, -1.0, 0.0), np.array(versions))


def rollout(reward: Reward, *chains: TokenChain, member: int = 0) -> Rollout:
    return Rollout(RolloutKey("adding", 7, member), TASK, Episode((), chains), reward, Timing(0.0))


def test_a_reward_is_exactly_one_of_three() -> None:
    """R2: nothing but Scored carries a number, so a failure cannot be read as 0."""
    assert set(get_args(Reward)) == {Scored, Failed, Unscored}
    assert [kind.__name__ for kind in get_args(Reward) if "value" in {f.name for f in fields(kind)}] == ["Scored"]


def test_only_a_scored_rollout_has_a_score() -> None:
    assert rollout(Scored(0.0)).score == 0.0
    assert rollout(Failed(FailureCause.JUDGE, "ValueError", "no number")).score is None
    assert rollout(Unscored()).score is None


def test_the_rewards_of_a_group_are_in_member_order() -> None:
    members = tuple(rollout(Scored(value), member=i) for i, value in enumerate((0.5, 1.0, 0.0)))
    assert Group("adding", 7, TASK, members).rewards == (0.5, 1.0, 0.0)


def test_a_failure_never_becomes_a_reward_of_zero() -> None:
    failed = rollout(Failed(FailureCause.INFRA, "EngineError", "gone"))
    assert Group("adding", 7, TASK, (failed, rollout(Unscored()), rollout(Scored(1.0)))).rewards == (1.0,)


def test_the_oldest_version_of_a_rollout_is_that_of_its_oldest_token() -> None:
    assert rollout(Scored(1.0), chain(-1, 5, 6), chain(-1, 4, -1, 7), chain(-1, -1)).oldest_version == 4
    assert rollout(Scored(1.0), chain(-1, -1)).oldest_version is None
    nothing = Rollout(RolloutKey("adding", 7, 0), TASK, None, Unscored(), Timing(0.0))
    assert nothing.oldest_version is None


def test_an_episode_counts_what_was_sampled_and_knows_its_last_answer() -> None:
    messages = (
        {"role": "assistant", "content": "first"},
        {"role": "assistant", "content": "last"},
        {"role": "user", "content": "thanks"},
    )
    episode = Episode(messages, (chain(-1, 5, 6), chain(-1, 4)))
    assert episode.sampled_tokens == 3
    assert episode.answer == "last"
    assert Episode((), ()).answer == ""
    assert Episode(({"role": "assistant", "content": None},), ()).answer == ""


def test_keys_sort_by_draw_member_and_attempt_also_as_text() -> None:
    keys = [RolloutKey("a", draw, member, attempt) for draw in (2, 10) for member in (1, 11) for attempt in (0, 1)]
    assert sorted(keys, key=str) == sorted(keys) == keys


def test_a_task_of_one_question() -> None:
    assert TASK.messages == ({"role": "user", "content": "What is 12+7?"},)
    assert (TASK.truth, TASK.metadata) == (19, {"level": 2})


VALUES = [k for name in types.__all__ if isinstance(k := getattr(types, name), type) and is_dataclass(k)]


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_value_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_is_finite(value: float) -> None:
    with pytest.raises(JudgeError, match="finite"):
        Scored(value)
