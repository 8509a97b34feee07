"""What a step has to compute at least, and how long the machine's matrix products would take for it.

Each prompt counts once per group, in sampling and in training, and a group whose rewards are all equal has nothing to
train: its gradient is 0. The last token of an answer is predicted but never fed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Kinds of work that differ in how many rows a matrix product has."""

    PREFILL = "prefill"
    """Prompts, forward."""
    DECODE = "decode"
    """One token of every sequence, forward."""
    TRAIN = "train"
    """Packed groups, forward and backward."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How many tokens pass through the blocks, and of how many the logits are computed."""

    body: int = 0
    head: int = 0

    def __add__(self, other: Rows) -> Rows:
        return Rows(self.body + other.body, self.head + other.head)


Work = Mapping[Phase, Rows]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """One group of a step: the prompt's tokens, and each member's sampled tokens and reward."""

    prompt_tokens: int
    sampled: tuple[int, ...]
    rewards: tuple[float, ...]

    @staticmethod
    def of(answer: Mapping[str, Any]) -> GroupCounts:
        return GroupCounts(answer["prompt_tokens"], tuple(answer["sampled"]), tuple(answer["rewards"]))

    @property
    def has_signal(self) -> bool:
        return len(set(self.rewards)) > 1

    @property
    def work(self) -> Work:
        fed = sum(count - 1 for count in self.sampled)
        trained = Rows(self.prompt_tokens + fed, 1 + fed) if self.has_signal else Rows()
        return {Phase.PREFILL: Rows(self.prompt_tokens, 1), Phase.DECODE: Rows(fed, fed), Phase.TRAIN: trained}


def total(works: Iterable[Work]) -> Work:
    summed = dict.fromkeys(Phase, Rows())
    for work in works:
        for phase, rows in work.items():
            summed[phase] += rows
    return summed


@dataclass(frozen=True, slots=True)
class Pace:
    """Measured seconds per row of each phase."""

    body: Mapping[Phase, float]
    head: Mapping[Phase, float]

    @staticmethod
    def of(seconds: Mapping[str, Mapping[str, float]], measured: Work) -> Pace:
        """From the seconds of a pass and the rows that it had."""
        return Pace(
            {phase: seconds[phase]["body"] / rows.body for phase, rows in measured.items()},
            {phase: seconds[phase]["head"] / rows.head for phase, rows in measured.items()},
        )

    def seconds(self, work: Work) -> float:
        """How long the matrix products of `work` take at this pace."""
        return sum(
            rows.body * self.body[phase] + rows.head * self.head[phase]
            for phase, rows in work.items()
            if rows != Rows()
        )
