"""Attention over packed groups, for training: each rest sees the shared prefix and, causally, itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from loopwright.core.packing import Packed
from loopwright.learn import shared_prefix
from loopwright.learn.kernels import Segment, concatenated, kernel, kernel_gradients
from loopwright.learn.layout import Layout
from loopwright.learn.shared_prefix import sees_all
from loopwright.models.attention import BLOCKED


class SharedPrefixPlan:
    """The rows of a micro-batch, as `Layout` places them. Long rows are computed without a mask, so memory grows with
    their length, and not with its square."""

    def __init__(self, rows: Sequence[Packed], device: torch.device) -> None:
        self._layout = Layout(rows)
        self._device = device
        self._biases: dict[tuple[Packed, int | None], torch.Tensor] = {}

    def compute(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp, without gradients. Tensors are [tokens, heads, dim]."""
        layout = self._layout
        (q, k, v), *rows = self._in_parts((query, key, value))
        results: list[Segment] = [shared_prefix.attend(q, k, v, layout.long, scaling, window)] if layout.long else []
        for row, (q, k, v) in zip(layout.short, rows, strict=True):
            results.append(kernel(q, k, v, scaling, bias=self._bias(row, window, q.dtype)))
        output, total = concatenated(results)
        return output, total

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
    ) -> list[torch.Tensor]:
        """The gradients of queries, keys and values. `grad` is the output's gradient; the other arguments are the
        inputs and results of `compute`."""
        long = self._layout.long
        (*of, k, v), *rows = self._in_parts((grad, query, output, total, key, value))
        results: list[Segment] = [shared_prefix.gradients(of, k, v, long, scaling, window)] if long else []
        for row, (*of, k, v) in zip(self._layout.short, rows, strict=True):
            results.append(kernel_gradients(of, k, v, scaling, bias=self._bias(row, window, k.dtype)))
        return concatenated(results)

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
        """The method of an `AttentionPlan`, for models that are trained through their own modules."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        result: torch.Tensor = _Attend.apply(q, k, v, self, scaling, window)  # type: ignore[no-untyped-call]
        return result[None]

    def _in_parts(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """The tokens of all long rows together, then those of each short row."""
        sizes = [sum(row.tokens for row in self._layout.long), *(row.tokens for row in self._layout.short)]
        # Split instead of slicing: the gradient of a slice is a tensor of zeros as large as the whole.
        return list(zip(*(torch.split_with_sizes(x, sizes) for x in tensors), strict=True))

    def _bias(self, row: Packed, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        place = (row, None if sees_all(row, window) else window)
        if place not in self._biases:
            self._biases[place] = _bias(row, place[1], dtype, self._device)
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
    """The mask [tokens, tokens] of a short row, which is added to the scores. Segment 0 is the prefix, which all
    segments see."""
    numbers = [np.zeros(row.prefix, np.int64), *(np.full(rest, i) for i, rest in enumerate(row.rests, start=1))]
    places = [np.arange(row.prefix), *(np.arange(row.prefix, row.prefix + rest) for rest in row.rests)]
    segment, position = np.concatenate(numbers), np.concatenate(places)
    behind = position[:, None] - position
    seen = ((segment == 0) | (segment[:, None] == segment)) & (behind >= 0)
    if window is not None:
        seen &= behind < window
    hidden = torch.from_numpy(~seen).to(device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, BLOCKED)
