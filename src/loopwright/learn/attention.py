"""Attention over packed groups, for training: each rest sees the shared prefix and, causally, itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from loopwright.core.packing import Packed
from loopwright.learn import shared_prefix
from loopwright.learn.layout import Layout
from loopwright.learn.shared_prefix import Segment, concatenated, kernel, kernel_gradients
from loopwright.models.attention import BLOCKED, masked_attention, on_flash


class SharedPrefixPlan:
    """The rows of a micro-batch, as `Layout` places them. The hand-written kernels are used on a CPU only."""

    def __init__(self, rows: Sequence[Packed], device: torch.device) -> None:
        self._layout = Layout(rows)
        self._device = device
        self._biases: dict[tuple[Packed, int | None], torch.Tensor] = {}

    def compute(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp, without gradients. Tensors are [tokens, heads, dim]."""
        long, short = self._in_parts(window)
        (q, k, v), *rows = self._arranged((query, key, value), long)
        results: list[Segment] = [shared_prefix.attend(q, k, v, long, scaling)] if long else []
        for row, (q, k, v) in zip(short, rows, strict=True):
            results.append(kernel(q, k, v, scaling, bias=self._bias(row, window, q.dtype)))
        output, total = self._put_back(concatenated(results), long)
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
        long, short = self._in_parts(window)
        (*of, k, v), *rows = self._arranged((grad, query, output, total, key, value), long)
        results: list[Segment] = [shared_prefix.gradients(of, k, v, long, scaling)] if long else []
        for row, (*of, k, v) in zip(short, rows, strict=True):
            results.append(kernel_gradients(of, k, v, scaling, bias=self._bias(row, window, k.dtype)))
        return self._put_back(concatenated(results), long)

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
        if on_flash(query, value):
            result: torch.Tensor = _Attend.apply(q, k, v, self, scaling, window)  # type: ignore[no-untyped-call]
            return result[None]
        outputs: list[Segment] = []
        _, *rows = self._arranged((q, k, v), ())
        for row, one in zip(self._layout.rows, rows, strict=True):
            q, k, v = (x.transpose(0, 1)[None] for x in one)
            outputs.append([masked_attention(q, k, v, self._bias(row, window, q.dtype), scaling)[0].transpose(0, 1)])
        return self._put_back(concatenated(outputs), ())[0][None]

    def _in_parts(self, window: int | None) -> tuple[Sequence[Packed], Sequence[Packed]]:
        """The rows that are computed without a mask, and the others. If a window hides a part of a long row, all rows
        are among the others."""
        long = self._layout.long
        return (long, self._layout.short) if all(_sees_all(row, window) for row in long) else ((), self._layout.rows)

    def _arranged(self, tensors: Sequence[torch.Tensor], long: Sequence[Packed]) -> list[tuple[torch.Tensor, ...]]:
        """Reorder the tokens: those of all `long` rows together, then the other rows one by one."""
        if len(long) < len(self._layout.long):
            tensors = [x.index_select(0, self._row_by_row) for x in tensors]
        sizes = [sum(row.tokens for row in long), *(row.tokens for row in self._layout.rows[len(long) :])]
        # Split instead of slicing: the gradient of a slice is a tensor of zeros as large as the whole.
        return list(zip(*(torch.split_with_sizes(x, sizes) for x in tensors), strict=True))

    def _put_back(self, results: list[torch.Tensor], long: Sequence[Packed]) -> list[torch.Tensor]:
        """Undo `_arranged`: restore the order of the layout."""
        if len(long) == len(self._layout.long):
            return results
        return [x.index_select(0, self._back) for x in results]

    @cached_property
    def _row_by_row(self) -> torch.Tensor:
        return torch.tensor(self._layout.row_by_row(), device=self._device)

    @cached_property
    def _back(self) -> torch.Tensor:
        return self._row_by_row.argsort()

    def _bias(self, row: Packed, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        place = (row, None if _sees_all(row, window) else window)
        if place not in self._biases:
            self._biases[place] = _bias(row, place[1], dtype, self._device)
        return self._biases[place]


def _sees_all(row: Packed, window: int | None) -> bool:
    return window is None or window >= row.prefix + max(row.rests, default=0)


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
    """The mask [tokens, tokens] that is added to the scores. Segment 0 is the prefix, which all segments see."""
    sizes = torch.tensor([row.prefix, *row.rests])
    segment = torch.arange(len(sizes)).repeat_interleave(sizes).to(device)
    position = torch.cat([torch.arange(row.prefix), *(row.prefix + torch.arange(rest) for rest in row.rests)]).to(
        device
    )
    behind = position[:, None] - position
    seen = ((segment == 0) | (segment[:, None] == segment)) & (behind >= 0)
    if window is not None:
        seen &= behind < window
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, BLOCKED)
