"""A reward is scored, failed or unscored (R2). Being a sum type, a failure cannot be read as the number 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from loopwright.errors import JudgeError


class FailureCause(StrEnum):
    """Whose fault it was; the remedy differs."""

    INFRA = "infra"
    """Engine, network or sandbox: the rollout was retried and still failed."""
    TASK = "task"
    """The task's own prompt does not fit the model's context; another attempt would meet the same."""
    AGENT = "agent"
    """The user's agent loop raised."""
    JUDGE = "judge"
    """The judger raised, timed out or gave no number; the rollout itself is sound."""
    FILTER = "filter"
    """The user's filter raised, or did not say yes or no: a failure of a whole group."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A finite number from a judger.

    `parts` holds named components when the judger has several; `answer` is what it read as the episode's answer, in
    canonical spelling, so that equal answers can be counted (majority@k).
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise JudgeError(
                f"a reward must be finite, got {self.value}", remedy="raise an error when there is no score"
            )


@dataclass(frozen=True, slots=True)
class Failed:
    """No score, and why: `error` is the exception's type, `detail` what a reader needs to mend it."""

    cause: FailureCause
    error: str
    detail: str


@dataclass(frozen=True, slots=True)
class Unscored:
    """Not judged yet."""


Reward = Scored | Failed | Unscored
