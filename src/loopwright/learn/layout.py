"""The order of a micro-batch's tokens in one packed row.

Long rows come first: all their prefixes, then all their rests. So attention computes neighbours of equal length in one
call, even if they belong to different rows. Short rows follow, each in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from loopwright.core.packing import Packed

SHORT = 256
"""A row of up to this many tokens is short: one attention call with a dense mask costs no more than several without."""


class Layout:
    """`long` and `short` are the rows in the order of their tokens. Long rows with prefixes of equal length are
    neighbours."""

    def __init__(self, rows: Sequence[Packed]) -> None:
        is_long = [row.tokens > SHORT for row in rows]
        self._order = sorted((i for i, long in enumerate(is_long) if long), key=lambda i: rows[i].prefix)
        self.long = [rows[i] for i in self._order]
        self._order += [i for i, long in enumerate(is_long) if not long]
        self.rows = [rows[i] for i in self._order]
        self.short = self.rows[len(self.long) :]

    def starts(self) -> list[tuple[int, int]]:
        """The first position of each row's prefix and of its rests, in the order in which the rows were given."""
        return [start for _, start in sorted(zip(self._order, self._starts(), strict=True))]

    def _starts(self) -> list[tuple[int, int]]:
        sizes = [row.prefix for row in self.long] + [row.tokens - row.prefix for row in self.long]
        for row in self.short:
            sizes += row.prefix, row.tokens - row.prefix
        ends = list(accumulate(sizes, initial=0))
        count = len(self.long)
        long, short = ends[: 2 * count], ends[2 * count : -1]
        return [*zip(long[:count], long[count:], strict=True), *zip(short[::2], short[1::2], strict=True)]
