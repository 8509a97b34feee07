"""Spans of tokens: pairs of the first position and the one after the last, in order, not empty, and not touching."""

from __future__ import annotations

from collections.abc import Iterable

Spans = tuple[tuple[int, int], ...]


def joined_spans(spans: Iterable[tuple[int, int]]) -> Spans:
    """The same positions, with spans that touch made one. `spans` come in order; empty ones are dropped."""
    joined: list[tuple[int, int]] = []
    for begin, end in spans:
        if begin >= end:
            continue
        if joined and joined[-1][1] == begin:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return tuple(joined)


def shifted_spans(spans: Spans, by: int) -> Spans:
    """The spans as seen from `by` positions earlier (later, if it is negative). Positions before 0 are cut off."""
    return tuple((max(0, begin + by), end + by) for begin, end in spans if end + by > 0)


def spanned(spans: Spans) -> int:
    """How many positions the spans cover."""
    return sum(end - begin for begin, end in spans)


def fits(spans: Spans, length: int) -> bool:
    """Whether these are spans of `length` tokens, in order, not empty, and not touching."""
    before = -1
    for begin, end in spans:
        if not before < begin < end <= length:
            return False
        before = end
    return True
