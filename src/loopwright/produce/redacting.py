"""A rollout without secrets (S3): what is judged, stored and shown of it is what this leaves.

Its token ids are never touched: they are what the model saw and said.
"""

from __future__ import annotations

from dataclasses import replace

from loopwright.core.redaction import Redactor
from loopwright.types import Episode, Failed, Reward, Rollout, Scored


def without_secrets(rollout: Rollout, redact: Redactor) -> Rollout:
    episode = rollout.episode and _episode(rollout.episode, redact)
    reward = _reward(rollout.reward, redact)
    if episode is rollout.episode and reward is rollout.reward:
        return rollout
    return replace(rollout, episode=episode, reward=reward)


def _episode(episode: Episode, redact: Redactor) -> Episode:
    messages, tools = redact.value(episode.messages), redact.value(episode.tools)
    if messages is episode.messages and tools is episode.tools:
        return episode
    return replace(episode, messages=messages, tools=tools)


def _reward(reward: Reward, redact: Redactor) -> Reward:
    match reward:
        case Failed(cause, error, detail):
            shown = Failed(cause, redact(error), redact(detail))
            return reward if shown == reward else shown
        case Scored(answer=str() as answer) if (shown_answer := redact(answer)) is not answer:
            return replace(reward, answer=shown_answer)
    return reward
