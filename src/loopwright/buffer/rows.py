"""A rollout as columns. Every storage adapter stores these columns, so all adapters keep the same data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loopwright.buffer.codec import (
    decode_chains,
    decode_reward,
    encode_chains,
    encode_reward,
)
from loopwright.buffer.transcripts import decode_transcript, encode_transcript
from loopwright.types import Episode, Rollout, RolloutKey, StopReason, Task, Timing


class RolloutRow(NamedTuple):
    """The stored columns of a rollout, without its group. `stop`, `messages` (a transcript) and `chains` are None if
    there is no episode."""

    member: int
    attempt: int
    stop: str | None
    messages: str | None
    chains: bytes | None
    reward: str
    started: float
    agent_seconds: float
    judge_seconds: float
    oldest: int | None
    """The version of its oldest sampled token."""
    worker: str | None
    engines: str | None
    """Names of engines, separated by commas."""
    held_seconds: float | None
    judged_at: float | None


def to_row(rollout: Rollout) -> RolloutRow:
    episode = rollout.episode
    return RolloutRow(
        member=rollout.key.member,
        attempt=rollout.key.attempt,
        stop=episode.stop.value if episode else None,
        messages=encode_transcript(episode) if episode else None,
        chains=encode_chains(episode.chains) if episode else None,
        reward=encode_reward(rollout.reward),
        started=rollout.timing.started,
        agent_seconds=rollout.timing.agent_seconds,
        judge_seconds=rollout.timing.judge_seconds,
        oldest=rollout.oldest_version,
        worker=rollout.worker,
        engines=",".join(rollout.engines) or None,
        held_seconds=rollout.timing.held_seconds,
        judged_at=rollout.timing.judged_at,
    )


def from_row(row: RolloutRow, task_set: str, draw: int, task: Task) -> Rollout:
    return Rollout(
        key=RolloutKey(task_set, draw, row.member, row.attempt),
        task=task,
        episode=_episode(row),
        reward=decode_reward(row.reward),
        timing=Timing(row.started, row.agent_seconds, row.judge_seconds, row.held_seconds, row.judged_at),
        worker=row.worker,
        engines=tuple(row.engines.split(",")) if row.engines else (),
    )


def _episode(row: RolloutRow) -> Episode | None:
    if row.stop is None or row.messages is None or row.chains is None:
        return None
    told = decode_transcript(row.messages)
    return Episode(told.messages, decode_chains(row.chains), StopReason(row.stop), told.tools, told.drift, told.output)


def newest_version(rollout: Rollout) -> int:
    """The version of the newest sampled token, or -1. A resumed run must have reached this version to train on it."""
    chains = rollout.episode.chains if rollout.episode else ()
    return max((int(np.maximum.reduce(chain.versions, initial=-1)) for chain in chains), default=-1)
