"""Staleness arithmetic: version v may feed train steps v+1 .. v+horizon, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.staleness import horizon, is_too_old, staleness, without_stale
from loopwright.types import Episode, Group, Rollout, RolloutKey, Scored, Task, Timing, TokenChain

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)


def test_on_policy_is_zero() -> None:
    assert staleness(version=0, step=1) == 0
    assert staleness(version=3, step=6) == 2


@pytest.mark.parametrize(("max_staleness", "interval", "steps"), [(0, 1, 1), (2, 1, 3), (0, 4, 4), (2, 4, 12)])
def test_horizon_by_example(max_staleness: int, interval: int, steps: int) -> None:
    assert horizon(max_staleness, interval) == steps


@BOUNDED
@given(st.integers(0, 50), st.integers(0, 5), st.integers(1, 5), st.integers(-5, 120))
def test_a_token_is_too_old_for_the_steps_after_its_horizon(
    version: int, max_staleness: int, interval: int, step: int
) -> None:
    reach = horizon(max_staleness, interval)
    allowed = range(version + 1, version + reach + 1)
    assert is_too_old(version, step, reach) == (step > allowed[-1])
    assert not is_too_old(version, step, None)


def chain(*versions: int) -> TokenChain:
    """One token per version; -1 is a token that was not sampled."""
    sampled = np.array([version >= 0 for version in versions], dtype=np.bool_)
    logprobs = np.where(sampled, np.float32(-0.5), np.float32(0.0))
    return TokenChain(np.arange(len(versions)), sampled, logprobs, np.array(versions))  # type: ignore[arg-type]


def group(*chains: TokenChain) -> Group:
    task = Task.ask("t", "?")
    rollouts = [
        Rollout(RolloutKey("s", 0, member), task, Episode((), (one,)), Scored(float(member)), Timing(0.0))
        for member, one in enumerate(chains)
    ]
    failed = Rollout(RolloutKey("s", 0, len(chains)), task, None, Scored(0.0), Timing(0.0))
    return Group("s", 0, task, (*rollouts, failed))


VERSIONS = st.lists(st.integers(-1, 6), max_size=8)


@given(st.lists(VERSIONS, min_size=1, max_size=3), st.integers(1, 9), st.integers(1, 4))
def test_masking_removes_the_tokens_that_are_too_old_and_nothing_else(
    members: list[list[int]], step: int, steps: int
) -> None:
    before = group(*(chain(*versions) for versions in members))
    after, masked = without_stale(before, step, steps)
    assert masked == sum(0 <= version < step - steps for versions in members for version in versions)
    for versions, rollout in zip(members, after.rollouts, strict=False):
        assert rollout.episode is not None
        (one,) = rollout.episode.chains
        kept = [version if version >= max(0, step - steps) else -1 for version in versions]
        assert one.versions.tolist() == kept
        assert one.mask.tolist() == [version >= 0 for version in kept]
        assert one.logprobs.tolist() == [-0.5 if version >= 0 else 0.0 for version in kept]
        assert one.ids.tolist() == list(range(len(versions)))
    assert after.rewards == before.rewards


def test_a_group_that_is_young_enough_is_the_same_value() -> None:
    young = group(chain(-1, 3, 4))
    assert without_stale(young, 5, 2) == (young, 0)
    assert without_stale(young, 99, None) == (young, 0)
    assert without_stale(young, 6, 2)[1] == 1


def test_chains_that_are_only_recorded_are_never_too_old() -> None:
    """They feed no step, so their age counts nowhere."""
    young = chain(-1, 5)
    made = group(young)
    recorded = replace(chain(-1, 0, 0), trained=False)
    rollout = replace(made.rollouts[0], episode=Episode((), (young, recorded)))
    both = replace(made, rollouts=(rollout,))
    assert both.oldest_version == 5
    kept, masked = without_stale(both, step=6, horizon=1)
    assert (kept, masked) == (both, 0)
    older, masked = without_stale(both, step=7, horizon=1)
    assert masked == 1
    assert [one.trained for one in older.rollouts[0].episode.chains] == [True, False]  # type: ignore[union-attr]
