"""Attention over packed groups, for training: a rest sees the shared prefix and itself, causally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loopwright.core.packing import Packed
from loopwright.learn import shared_prefix
from loopwright.learn.shared_prefix import kernel, kernel_gradients
from loopwright.models.attention import BLOCKED, masked_attention, on_flash

SHORT = 256
"""Tokens of a row up to which one call with a dense mask costs no more than several without."""


class SharedPrefixPlan:
    """One packed row per group, one after the other. What it computes by hand, it computes on a CPU alone."""

    def __init__(self, rows: Sequence[Packed], device: torch.device) -> None:
        self._rows = rows
        self._sizes = [row.tokens for row in rows]
        self._device = device
        self._biases: dict[tuple[int, int | None], torch.Tensor] = {}

    def compute(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp, without gradients. Tensors are [tokens, heads, dim]."""
        results = []
        for index, (q, k, v) in enumerate(self._by_row(query, key, value)):
            if self._in_parts(index, window):
                results.append(shared_prefix.attend(q, k, v, self._rows[index], scaling))
            else:
                results.append(kernel(q, k, v, scaling, bias=self._bias(index, window, q.dtype)))
        outputs, totals = zip(*results, strict=True)
        return torch.cat(outputs), torch.cat(totals)

    def gradients(
        self,
        grad: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        total: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> tuple[torch.Tensor, ...]:
        """Those of queries, keys and values, given that of the output, and what `compute` took and gave."""
        results = []
        for index, (g, q, k, v, o, t) in enumerate(self._by_row(grad, query, key, value, output, total)):
            of = (g, q, o, t)
            if self._in_parts(index, window):
                results.append(shared_prefix.gradients(of, k, v, self._rows[index], scaling))
            else:
                results.append(kernel_gradients(of, k, v, scaling, bias=self._bias(index, window, q.dtype)))
        return tuple(torch.cat(share) for share in zip(*results, strict=True))

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
        """An `AttentionPlan`, for models that are trained through their own modules."""
        if on_flash(query, value):
            q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
            result: torch.Tensor = _Attend.apply(q, k, v, self, scaling, window)  # type: ignore[no-untyped-call]
            return result[None]
        # Split, not sliced: the gradient of a slice is a tensor of zeros as large as the whole.
        rows = zip(*(torch.split_with_sizes(x, self._sizes, dim=2) for x in (query, key, value)), strict=True)
        biases = (self._bias(index, window, query.dtype) for index in range(len(self._rows)))
        outputs = [masked_attention(q, k, v, bias, scaling) for (q, k, v), bias in zip(rows, biases, strict=True)]
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def _by_row(self, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        return list(zip(*(torch.split_with_sizes(x, self._sizes) for x in tensors), strict=True))

    def _in_parts(self, index: int, window: int | None) -> bool:
        row = self._rows[index]
        return row.prefix > 0 and row.tokens > SHORT and self._sees_all(row, window)

    def _sees_all(self, row: Packed, window: int | None) -> bool:
        return window is None or window >= row.prefix + max(row.rests, default=0)

    def _bias(self, index: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        place = (index, None if self._sees_all(self._rows[index], window) else window)
        if place not in self._biases:
            self._biases[place] = _bias(self._rows[index], place[1], dtype, self._device)
        return self._biases[place]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SharedPrefixPlan,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        output, total = plan.compute(query, key, value, scaling, window)
        ctx.save_for_backward(query, key, value, output, total)
        ctx.plan, ctx.scaling, ctx.window = plan, scaling, window
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan: SharedPrefixPlan = ctx.plan
        query, key, value, output, total = ctx.saved_tensors
        shares = plan.gradients(grads[0], query, key, value, output, total, ctx.scaling, ctx.window)
        return *shares, None, None, None


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
