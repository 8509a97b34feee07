"""Rollouts to store, and a way to compare them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from loopwright.buffer.codec import encode_task
from loopwright.buffer.rows import to_row
from loopwright.ports import StalePolicy
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    Group,
    Reward,
    Rollout,
    RolloutKey,
    Scored,
    StopReason,
    Task,
    Timing,
    TokenChain,
    TrainedChain,
    Unscored,
)
from loopwright.types.spans import Spans

ON_POLICY = StalePolicy(horizon=1)

TASK = Task.ask("3+4", "What is 3+4?", truth=7, level="easy")


def make_rollout(
    draw: int = 0,
    member: int = 0,
    attempt: int = 0,
    *,
    version: int = 0,
    reward: Reward | None = None,
    task_set: str = "train",
    size: int = 3,
    stop: StopReason = StopReason.DONE,
    constrained: Spans = (),
) -> Rollout:
    """A rollout of `size` sampled tokens after a prompt of two."""
    chain = TokenChain(
        np.arange(size + 2, dtype=np.int32),
        np.array([False] * 2 + [True] * size),
        np.array([0.0] * 2 + [-0.25 - member] * size, dtype=np.float32),
        np.array([-1] * 2 + [version] * size, dtype=np.int32),
        constrained=constrained,
    )
    episode = Episode((*TASK.messages, {"role": "assistant", "content": "7"}), (chain,), stop)
    key = RolloutKey(task_set, draw, member, attempt)
    return Rollout(key, TASK, episode, reward or Scored(float(member), answer=str(member)), Timing(1.5, 0.25, 0.125))


def make_partial(
    draw: int = 0, member: int = 0, attempt: int = 0, *, version: int = 0, size: int = 1, task_set: str = "train"
) -> Rollout:
    """A rollout that was interrupted after `size` tokens."""
    key = RolloutKey(task_set, draw, member, attempt)
    whole = make_rollout(draw, member, attempt, version=version, size=size, reward=Unscored(), stop=StopReason.ABORTED)
    return replace(whole, key=key)


def make_failure(draw: int = 0, member: int = 0, attempt: int = 0) -> Rollout:
    failed = Failed(FailureCause.AGENT, "KeyError", "agent.py, line 3")
    return Rollout(RolloutKey("train", draw, member, attempt), TASK, None, failed, Timing(2.0))


def trained_chain(index: int, positions: list[int], old: list[float], losses: list[float]) -> TrainedChain:
    numbers = (np.array(values, np.float32) for values in (old, losses))
    return TrainedChain(index, np.array(positions, np.int32), *numbers)


def facts_of(rollout: Rollout) -> tuple[Any, ...]:
    """Everything about a rollout, in a form that `==` can compare (token chains compare by identity)."""
    return (rollout.key, encode_task(rollout.task), to_row(rollout))


def group_of(*rollouts: Rollout) -> Group:
    key = rollouts[0].key
    return Group(key.task_set, key.draw, TASK, rollouts)
