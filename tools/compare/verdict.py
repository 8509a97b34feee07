"""What rounds of two trees say: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any

FINE, LEAST = 0.95, 0.90
"""Old seconds over new ones. Above the first the new tree is not slower; below the second it is."""


class Verdict(StrEnum):
    NOT_SLOWER = "not slower"
    DOUBTFUL = "in doubt"
    SLOWER = "slower"


@dataclass(frozen=True, slots=True)
class Rounds:
    """The seconds that each tree's rounds took."""

    old: tuple[float, ...]
    new: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rounds of one benchmark."""

    name: str
    rounds: Rounds = Rounds((), ())
    is_settled: bool = False

    def with_rounds(self, more: Rounds) -> Comparison:
        return replace(self, rounds=Rounds(self.rounds.old + more.old, self.rounds.new + more.new))

    def settled(self) -> Comparison:
        """There will be no more rounds: what is in doubt now is slower."""
        return replace(self, is_settled=True)

    @property
    def ratio(self) -> float:
        """How many times as fast the new tree is: the ratio of the medians."""
        return median(self.rounds.old) / median(self.rounds.new)

    @property
    def verdict(self) -> Verdict:
        if self.ratio >= FINE:
            return Verdict.NOT_SLOWER
        return Verdict.SLOWER if self.is_settled or self.ratio < LEAST else Verdict.DOUBTFUL

    @property
    def line(self) -> str:
        old, new = (_shown(seconds) for seconds in (self.rounds.old, self.rounds.new))
        return f"{self.name:<14} {self.ratio:5.2f}  {self.verdict:<10}  old {old}, new {new}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "old": list(self.rounds.old),
            "new": list(self.rounds.new),
        }


def _shown(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.4g} s ({min(seconds):.4g} - {max(seconds):.4g}, {len(seconds)} rounds)"
