"""How much two tokenisations of one conversation differ: the recorded tokens, and those made from its text again.

Tokens are compared by id. Another split of the same text is as wrong as another text, because a model would be trained
on tokens that it never sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WINDOW = 6
"""How many tokens are shown before and after the first difference."""

MOST_EDITS = 1000
"""Streams with more edits than this are not compared token by token. All tokens between the common beginning and the
common end then count as wrong."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between two streams: what both have before it, and how each continues."""

    place: int
    before: tuple[int, ...]
    recorded: tuple[int, ...]
    naive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """`lost` of the `tokens` recorded tokens are missing in the naive stream. The naive stream has `invented` tokens
    that the recorded one does not have."""

    tokens: int = 0
    lost: int = 0
    invented: int = 0
    first: Mismatch | None = None

    @property
    def wrong(self) -> int:
        """How many tokens are wrong. A token that was replaced by another counts once."""
        return max(self.lost, self.invented)


def drift_between(recorded: Sequence[int], naive: Sequence[int]) -> Drift:
    """The drift of `naive` from what was recorded."""
    ours, theirs = tuple(recorded), tuple(naive)
    head = _common(ours, theirs)
    if head == len(ours) == len(theirs):
        return Drift(len(ours))
    tail = _common(ours[head:][::-1], theirs[head:][::-1])
    middle, other = ours[head : len(ours) - tail], theirs[head : len(theirs) - tail]
    lost, invented = _edits(middle, other)
    before = ours[max(0, head - WINDOW) : head]
    first = Mismatch(head, before, ours[head : head + WINDOW], theirs[head : head + WINDOW])
    return Drift(len(ours), lost, invented, first)


def total(drifts: Iterable[Drift]) -> Drift:
    """The sum of several drifts, with the first mismatch among them."""
    summed = Drift()
    for drift in drifts:
        summed = Drift(
            summed.tokens + drift.tokens,
            summed.lost + drift.lost,
            summed.invented + drift.invented,
            summed.first or drift.first,
        )
    return summed


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _edits(one: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """The fewest tokens to delete from `one`, and to insert, to make it `other` (Myers' greedy search)."""
    if not one or not other:
        return len(one), len(other)
    reach = {1: 0}
    for edits in range(min(len(one) + len(other), MOST_EDITS) + 1):
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(one) and y < len(other) and one[x] == other[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len(one) and y >= len(other):
                deleted = (edits + len(one) - len(other)) // 2
                return deleted, edits - deleted
    return len(one), len(other)
