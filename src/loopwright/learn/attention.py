"""Attention over packed groups, for training: a rest sees the shared prefix and itself, causally."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopwright.core.packing import Packed
from loopwright.learn.shared_prefix import shared_prefix_attention
from loopwright.models.attention import BLOCKED, masked_attention, on_flash

SHORT = 256
"""Tokens of a row up to which one call with a dense mask costs no more than several without."""


class SharedPrefixPlan:
    """One packed row per group, one after the other."""

    def __init__(self, rows: Sequence[Packed], device: torch.device) -> None:
        self._rows = rows
        self._sizes = [row.tokens for row in rows]
        self._device = device
        self._biases: dict[tuple[int, int | None], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        # Split, not sliced: the gradient of a slice is a tensor of zeros as large as the whole.
        q, k, v = (torch.split_with_sizes(x, self._sizes, dim=2) for x in (query, key, value))
        outputs = [self._row(i, q[i], k[i], v[i], scaling, window) for i in range(len(self._rows))]
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def _row(
        self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        row = self._rows[index]
        reach = row.prefix + max(row.rests, default=0)
        sees_all = window is None or window >= reach
        if sees_all and row.prefix > 0 and row.tokens > SHORT and on_flash(q, v):
            return shared_prefix_attention(q, k, v, row, scaling)
        place = (index, None if sees_all else window)
        if place not in self._biases:
            self._biases[place] = _bias(row, place[1], q.dtype, self._device)
        return masked_attention(q, k, v, self._biases[place], scaling)


def _bias(row: Packed, window: int | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[tokens, tokens], added to the scores. Segment 0 is the prefix, which every other segment sees."""
    segments, positions = packed_positions(row)
    segment, position = torch.tensor(segments, device=device), torch.tensor(positions, device=device)
    behind = position[:, None] - position
    seen = ((segment == 0) | (segment[:, None] == segment)) & (behind >= 0)
    if window is not None:
        seen &= behind < window
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, BLOCKED)


def packed_positions(row: Packed) -> tuple[list[int], list[int]]:
    """Segment and position of every token of a packed row: positions restart after the prefix."""
    segments, positions = [0] * row.prefix, list(range(row.prefix))
    for number, rest in enumerate(row.rests, start=1):
        segments += [number] * rest
        positions += range(row.prefix, row.prefix + rest)
    return segments, positions
