"""A reward is scored, failed or unscored (R2). These are three types, so a failure cannot be read as the number 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from loopwright.errors import JudgeError


class FailureCause(StrEnum):
    """What caused the failure. Each cause has its own remedy."""

    INFRA = "infra"
    """Engine, network or sandbox: the rollout was retried and still failed."""
    TASK = "task"
    """The task's own prompt does not fit the model's context, so another attempt would fail too."""
    SETUP = "setup"
    """The place for an agent that is a program could not be set up."""
    AGENT = "agent"
    """The user's agent raised; a program ended with a failure."""
    VERIFIER = "verifier"
    """The reward of a program could not be read, and its folder is gone: the rollout was made again and still
    failed."""
    JUDGE = "judge"
    """The judger raised, timed out or gave no number; the rollout itself is sound."""
    FILTER = "filter"
    """The user's filter raised, or did not return true or false. The whole group failed."""


MOST_EVIDENCE = 4096


@dataclass(frozen=True, slots=True)
class Scored:
    """A finite number from a judger.

    `parts` holds named components if the judger has several. `answer` is what the judger read as the episode's answer,
    in a canonical form, so that equal answers can be counted (majority@k). `evidence` is why it scored so, for people:
    a judge's reason, or the output of a verifier. At most MOST_EVIDENCE bytes of it are stored.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None
    evidence: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise JudgeError(
                f"a reward must be finite, got {self.value}", remedy="raise an error when there is no score"
            )


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no score. `error` is the exception's type; `detail` is what a reader needs to repair the cause."""

    cause: FailureCause
    error: str
    detail: str


@dataclass(frozen=True, slots=True)
class Unscored:
    """Not judged yet."""


Reward = Scored | Failed | Unscored
