"""Pairs of numbers, ours and a peer's, and how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Pair = tuple[float, float]


def gap(pairs: Iterable[Pair]) -> float:
    """The largest difference, as a share of the peer's value where that is above 1; infinite when one is not finite."""
    differences = [abs(ours - theirs) / max(abs(theirs), 1.0) for ours, theirs in pairs]
    return max(differences) if all(map(math.isfinite, differences)) else math.inf


def of_rows(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float] | None]) -> Iterator[Pair]:
    """Row by row; a peer that refused a row (None) is not asked."""
    for mine, other in zip(ours, theirs, strict=True):
        if other is not None:
            yield from zip(mine, other, strict=True)


def of_loss(ours: tuple[float, Sequence[Sequence[float]]], theirs: dict[str, Any]) -> Iterator[Pair]:
    """The loss, and its gradient token by token."""
    value, gradient = ours
    yield value, theirs["loss"]
    yield from of_rows(gradient, theirs["gradient"])
