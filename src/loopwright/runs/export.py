"""Writes stored rollouts as JSON lines for other programs: every attempt with its exact tokens, also failed ones."""

from __future__ import annotations

import json
from typing import Any

from loopwright.buffer.codec import encode_reward, encode_task
from loopwright.buffer.transcripts import transcript_fields
from loopwright.runs.stored_run import Attempt
from loopwright.types import Episode, TokenChain


def to_line(attempt: Attempt) -> str:
    """One attempt as one JSON object, without a newline. docs/evaluation.md describes its fields."""
    rollout, episode = attempt.rollout, attempt.rollout.episode
    record = {
        "task_set": rollout.key.task_set,
        "draw": rollout.key.draw,
        "round": attempt.round,
        "member": rollout.key.member,
        "attempt": rollout.key.attempt,
        "status": attempt.status.value,
        "batch": attempt.step,
        "task": json.loads(encode_task(rollout.task)),
        "reward": json.loads(encode_reward(rollout.reward)),
        "episode": episode_fields(episode) if episode else None,
        "started": rollout.timing.started,
        "agent_seconds": rollout.timing.agent_seconds,
        "judge_seconds": rollout.timing.judge_seconds,
        "held_seconds": rollout.timing.held_seconds,
        "judged_at": rollout.timing.judged_at,
        "worker": rollout.worker,
        "engines": list(rollout.engines),
    }
    return json.dumps(record, allow_nan=False)


def episode_fields(episode: Episode) -> dict[str, Any]:
    """An episode in plain values."""
    return {
        **transcript_fields(episode),
        "stop": episode.stop.value,
        "chains": [_chain(chain) for chain in episode.chains],
    }


def _chain(chain: TokenChain) -> dict[str, Any]:
    return {
        "start": chain.start.value,
        "trained": chain.trained,
        "ids": chain.ids.tolist(),
        "mask": chain.mask.astype(int).tolist(),
        "logprobs": chain.logprobs.tolist(),
        "versions": chain.versions.tolist(),
        "constrained": [list(span) for span in chain.constrained],
    }
