"""What became of a completed session: all of its rollout that the session's record does not hold, as JSON.

The run stores it with the session, so that a process that takes the run over can finish the rollout. The invariant:
`outcome_from_json` gives the rollout that `outcome_to_json` was given, if it gets the record of the same session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loopwright.errors import LoopwrightError, RunError
from loopwright.gateway.record import SessionRecord
from loopwright.gateway.wire import message_from_json
from loopwright.types import (
    Episode,
    EpisodeDrift,
    Message,
    ProgramOutput,
    Rollout,
    RolloutRequest,
    Scored,
    StopReason,
    Timing,
    TokenDiff,
    Unscored,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rollout without its name and its task, which the run's ledger has."""

    episode: Episode
    reward: Scored | Unscored
    timing: Timing

    def rollout(self, request: RolloutRequest) -> Rollout:
        return Rollout(request.key, request.task, self.episode, self.reward, self.timing)


def outcome_to_json(rollout: Rollout, transcript: Sequence[Message]) -> dict[str, Any] | None:
    """The outcome of a rollout whose session has recorded `transcript`. None if it failed or is not whole: such a
    rollout is made again."""
    episode, reward = rollout.episode, rollout.reward
    if episode is None or rollout.is_partial or not isinstance(reward, Scored | Unscored):
        return None
    return {
        "reward": asdict(reward) if isinstance(reward, Scored) else None,
        "messages": None if episode.messages == tuple(transcript) else episode.messages,
        "stop": episode.stop,
        "trained": [chain.trained for chain in episode.chains],
        "drift": episode.drift and asdict(episode.drift),
        "output": episode.output and asdict(episode.output),
        "started": rollout.timing.started,
        "agent_seconds": rollout.timing.agent_seconds,
        "held_seconds": rollout.timing.held_seconds,
    }


def outcome_from_json(said: Mapping[str, Any], record: SessionRecord) -> Outcome:
    """Raises RunError if `said` is no outcome of this record."""
    try:
        reward = Unscored() if said["reward"] is None else Scored(**said["reward"])
        return Outcome(_episode(said, record), reward, _timing(said))
    except (LoopwrightError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"the outcome of a session cannot be read: {type(error).__name__} {error}",
            remedy="use a gateway of the same version of Loopwright",
        ) from error


def _timing(said: Mapping[str, Any]) -> Timing:
    return Timing(said["started"], said["agent_seconds"], held_seconds=said.get("held_seconds"))


def drift_from_json(said: Mapping[str, Any]) -> EpisodeDrift:
    first = said["first"]
    diff = first and TokenDiff(first["place"], tuple(first["before"]), tuple(first["recorded"]), tuple(first["naive"]))
    return EpisodeDrift(said["tokens"], said["lost"], said["invented"], diff)


def _episode(said: Mapping[str, Any], record: SessionRecord) -> Episode:
    messages, drift, output = said["messages"], said["drift"], said["output"]
    chains = zip(record.chains, said["trained"], strict=True)
    return Episode(
        record.transcript if messages is None else tuple(message_from_json(message) for message in messages),
        tuple(replace(chain, trained=trained) for chain, trained in chains),
        StopReason(said["stop"]),
        record.tools,
        drift and drift_from_json(drift),
        output and ProgramOutput(**output),
    )
