"""Attention within a window, piece by piece: a band of a segment's scores, and never all of them.

A segment of queries sees a segment of keys. The tokens of both have consecutive positions. A piece is a few queries and
the keys that at least one of them sees. So memory grows with the window, and not with the square of the segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from loopwright.learn.kernels import Segment, kernel, kernel_gradients
from loopwright.models.attention import BLOCKED

QUERIES = 256
"""How many queries a piece has, at most."""


class Window(NamedTuple):
    """How many positions a query sees, counted from its own one back. `ahead` is how many positions the first query
    stands after the first key."""

    size: int
    ahead: int = 0


class _Piece(NamedTuple):
    queries: slice
    keys: slice
    causal: bool = False

    def bias(self, window: Window, like: torch.Tensor) -> torch.Tensor | None:
        """The mask [queries, keys] that is added to the scores, or None if all of these keys are seen."""
        nearest = window.ahead + self.queries.start - (self.keys.stop - 1)
        farthest = window.ahead + self.queries.stop - 1 - self.keys.start
        if self.causal or (nearest >= 0 and farthest < window.size):
            return None
        key = torch.arange(self.keys.start, self.keys.stop, device=like.device)
        behind = torch.arange(self.queries.start, self.queries.stop, device=like.device)[:, None] + window.ahead - key
        hidden = (behind < 0) | (behind >= window.size)
        return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, BLOCKED)


def band_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: Window
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp. A query that sees nothing gets zeros, and a log-sum-exp without weight."""
    output = query.new_zeros(*query.shape[:2], value.shape[-1])
    exact = torch.promote_types(query.dtype, torch.float32)
    total = torch.full(query.shape[:2], BLOCKED, dtype=exact, device=query.device)
    for piece in _pieces(len(query), len(key), window):
        q, k, v = query[piece.queries], key[piece.keys], value[piece.keys]
        found = kernel(q, k, v, scaling, causal=piece.causal, bias=piece.bias(window, query))
        output[piece.queries], total[piece.queries] = found
    return output, total


def band_gradients(
    of: Segment, key: torch.Tensor, value: torch.Tensor, scaling: float, window: Window
) -> list[torch.Tensor]:
    """The gradients of queries, keys and values. `of` is as in `kernel_gradients`."""
    dquery, dkey, dvalue = torch.zeros_like(of[1]), torch.zeros_like(key), torch.zeros_like(value)
    for piece in _pieces(len(dquery), len(key), window):
        some, k, v = [x[piece.queries] for x in of], key[piece.keys], value[piece.keys]
        bias = piece.bias(window, dquery)
        dquery[piece.queries], dk, dv = kernel_gradients(some, k, v, scaling, causal=piece.causal, bias=bias)
        dkey[piece.keys] += dk
        dvalue[piece.keys] += dv
    return [dquery, dkey, dvalue]


def _pieces(queries: int, keys: int, window: Window) -> Iterator[_Piece]:
    """Every query that sees a key is in one piece."""
    size, ahead = window
    start = 0
    if ahead == 0:
        # The first queries of a segment see all before them: no mask is needed, however large the window is.
        start = min(size, queries)
        yield _Piece(slice(0, start), slice(0, start), causal=True)
    end = min(queries, size - 1 + keys - ahead)
    for first in range(start, end, QUERIES):
        last = min(first + QUERIES, end)
        yield _Piece(slice(first, last), slice(max(0, ahead + first - size + 1), min(keys, ahead + last)))
