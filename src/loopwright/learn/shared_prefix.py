"""Exact attention over packed rows without a mask: each prefix sees itself, and each rest sees its prefix and itself.

We do this ourselves because a kernel with a dense mask also computes what the mask hides: twice the work for eight
short answers after a long prompt, and (number of chains) times the work for long answers. The mask's memory would grow
with the square of the row. Where a window hides tokens, `bands` computes what it leaves. Softmax attention over two
sets of keys is the sum of both, weighted by their log-sum-exp. The backward kernel, given the merged output and
log-sum-exp, yields each set's share of the gradients.

All prefixes come before all rests. Neighbours of equal length are computed in one call, no matter which rows they
belong to: for short ones, a call costs more than the computation.

Tensors are [tokens, heads, dim], as matrix products return them. Log-sum-exps are [tokens, heads].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from loopwright.core.packing import Packed
from loopwright.learn.bands import Window, band_attention, band_gradients
from loopwright.learn.kernels import Segment, concatenated, kernel, kernel_gradients, slices
from loopwright.models.attention import BLOCKED


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: Sequence[Packed],
    scaling: float,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp. All rests of a row attend to its prefix in one call, as one segment. Each rest attends to
    itself separately."""
    prefixes, rests = [row.prefix for row in rows], [sum(row.rests) for row in rows]
    (q, queries), (k, keys), (v, values) = slices((query, key, value), (sum(prefixes), sum(rests)))
    parts: list[Segment] = [_apart_causal(q, k, v, prefixes, scaling, window)] if len(q) else []
    if len(queries):
        near, near_total = _apart_causal(queries, keys, values, _lengths(rows), scaling, window)
        (of_rows,), (row_keys, row_values) = slices((queries,), rests), slices((k, v), prefixes)
        by_row = zip(rows, of_rows, row_keys, row_values, strict=True)
        far, far_total = concatenated([_far(row, q, k, v, scaling, window) for row, q, k, v in by_row])
        both = torch.logaddexp(far_total, near_total)
        far *= (far_total - both).exp_().unsqueeze(-1)
        far += near.mul_((near_total - both).exp_().unsqueeze(-1))
        parts.append((far, both))
    output, total = concatenated(parts)
    return output, total


def gradients(
    of: Segment, key: torch.Tensor, value: torch.Tensor, rows: Sequence[Packed], scaling: float, window: int | None
) -> list[torch.Tensor]:
    """The gradients of queries, keys and values. `of` is as in `kernel_gradients`."""
    prefixes, rests = [row.prefix for row in rows], [sum(row.rests) for row in rows]
    sizes = sum(prefixes), sum(rests)
    (k, keys), (v, values) = slices((key, value), sizes)
    prefix, rest = zip(*slices(of, sizes), strict=True)
    parts = [_apart_causal_gradients(prefix, k, v, prefixes, scaling, window)] if len(k) else []
    if len(keys):
        near = _apart_causal_gradients(rest, keys, values, _lengths(rows), scaling, window)
        row_keys, row_values = slices((k, v), prefixes)
        by_row = zip(rows, zip(*slices(rest, rests), strict=True), row_keys, row_values, strict=True)
        far = concatenated([_far_gradients(row, of, k, v, scaling, window) for row, of, k, v in by_row])
        near[0].add_(far[0])
        for own, share in zip(parts[0][1:], far[1:], strict=True) if parts else ():
            own.add_(share)
        parts.append(near)
    return concatenated(parts)


def _lengths(rows: Iterable[Packed]) -> list[int]:
    return [rest for row in rows for rest in row.rests]


def sees_all(row: Packed, window: int | None) -> bool:
    """Whether the window hides nothing of this row."""
    return window is None or window >= row.prefix + max(row.rests, default=0)


def _far(row: Packed, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, window: int | None) -> Segment:
    """Attention of all rests of a row to its prefix. Without a prefix they see nothing here."""
    if not (len(q) and len(k)):
        return q.new_zeros(*q.shape[:2], v.shape[-1]), q.new_full(q.shape[:2], BLOCKED)
    if window is None or sees_all(row, window):
        return kernel(q, k, v, scaling)
    (rests,) = slices((q,), row.rests)
    return concatenated([band_attention(rest, k, v, scaling, Window(window, ahead=row.prefix)) for rest in rests])


def _far_gradients(
    row: Packed, of: Segment, k: torch.Tensor, v: torch.Tensor, scaling: float, window: int | None
) -> Segment:
    if not (len(of[1]) and len(k)):
        return [torch.zeros_like(x) for x in (of[1], k, v)]
    if window is None or sees_all(row, window):
        return kernel_gradients(of, k, v, scaling)
    rests = zip(*slices(of, row.rests), strict=True)
    shares = [band_gradients(rest, k, v, scaling, Window(window, ahead=row.prefix)) for rest in rests]
    queries, keys, values = zip(*shares, strict=True)
    return torch.cat(queries), _sum(keys), _sum(values)


def _sum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first, *others = tensors
    for other in others:
        first += other
    return first


def _apart_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Iterable[int], scaling: float, window: int | None
) -> list[torch.Tensor]:
    """Causal attention of each segment to itself, for segments of these lengths."""
    runs = _alike(lengths, window)
    segments = zip(runs, *slices((q, k, v), [run.tokens for run in runs]), strict=True)
    return concatenated(
        [
            band_attention(q, k, v, scaling, run.window)
            if run.window is not None
            else kernel(q, k, v, scaling, parts=run.count, causal=True)
            for run, q, k, v in segments
        ]
    )


def _apart_causal_gradients(
    of: Segment, k: torch.Tensor, v: torch.Tensor, lengths: Iterable[int], scaling: float, window: int | None
) -> list[torch.Tensor]:
    runs = _alike(lengths, window)
    sizes = [run.tokens for run in runs]
    segments = zip(runs, zip(*slices(of, sizes), strict=True), *slices((k, v), sizes), strict=True)
    return concatenated(
        [
            band_gradients(own, k, v, scaling, run.window)
            if run.window is not None
            else kernel_gradients(own, k, v, scaling, parts=run.count, causal=True)
            for run, own, k, v in segments
        ]
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Segments of equal length that are computed in one call. With a window that hides something, it is one segment."""

    count: int
    tokens: int
    window: Window | None


def _alike(lengths: Iterable[int], window: int | None) -> list[_Run]:
    """The runs of neighbours. Empty segments are left out."""
    runs: list[_Run] = []
    for size, run in groupby(length for length in lengths if length > 0):
        count = len(list(run))
        if window is None or window >= size:
            runs.append(_Run(count, count * size, None))
        else:
            runs += [_Run(1, size, Window(window))] * count
    return runs
