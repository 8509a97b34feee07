"""Medians, spread and ratios. A round is a mapping from names to numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Round = Mapping[str, float]


class Better(StrEnum):
    """Which way a figure is better, if any."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"
    """It describes what was done, so that a reader can judge whether the comparison is fair."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that rounds have, under the name `key`."""

    key: str
    label: str
    better: Better = Better.NEITHER
    digits: int = 2
    absent: str = ""
    """What it means if a side has no such number, for people."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one figure over the rounds."""

    median: float
    lowest: float
    highest: float


def summarise(rounds: Sequence[Round], key: str) -> Summary:
    values = [round[key] for round in rounds]
    return Summary(statistics.median(values), min(values), max(values))


def advantage(figure: Figure, ours: Sequence[Round], peer: Sequence[Round]) -> Summary | None:
    """How many times better ours is: the ratio of the medians, and that of the worst and the best pair of rounds.

    None for a figure that is not about better, and where a side has no such figure.
    """
    if figure.better is Better.NEITHER or not all(figure.key in round for round in (*ours, *peer)):
        return None
    pairs = [_ratio(figure, mine[figure.key], theirs[figure.key]) for mine, theirs in zip(ours, peer, strict=True)]
    medians = (summarise(rounds, figure.key).median for rounds in (ours, peer))
    return Summary(_ratio(figure, *medians), min(pairs), max(pairs))


def _ratio(figure: Figure, ours: float, peer: float) -> float:
    better, worse = (ours, peer) if figure.better is Better.HIGHER else (peer, ours)
    return better / worse if worse else float("inf")
