"""Exact attention over packed rows without a mask: each prefix sees itself, and each rest sees its prefix and itself.

We do this ourselves because a kernel with a dense mask also computes what the mask hides: twice the work for eight
short answers after a long prompt, and (number of chains) times the work for long answers. Softmax attention over two
sets of keys is the sum of both, weighted by their log-sum-exp. The backward kernel, given the merged output and
log-sum-exp, yields each set's share of the gradients.

All prefixes come before all rests. Neighbours of equal length are computed in one call, no matter which rows they
belong to: for short ones, a call costs more than the computation.

Tensors are [tokens, heads, dim], as matrix products return them. Log-sum-exps are [tokens, heads].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch

from loopwright.core.packing import Packed
from loopwright.models.attention import BLOCKED, flash, flash_backward

Segment = Sequence[torch.Tensor]
"""Several tensors that belong to the same tokens."""


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    parts: int = 1,
    causal: bool = False,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the kernel once: the output and its log-sum-exp. The tokens are split into `parts` equal parts, and no part
    sees another."""
    heads = (_apart(x, parts) for x in (query, key, value))
    output, total = flash(*heads, 0.0, causal, attn_mask=bias, scale=scaling)
    return _in_a_row(output), _in_a_row(total)


def kernel_gradients(
    of: Segment,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    parts: int = 1,
    causal: bool = False,
    bias: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """The share of some keys and values in the gradients of queries, keys and values. `of` holds the gradient of the
    output, the queries, the output and its log-sum-exp; the last two are over all keys that the queries see."""
    grad, query, output, total = of
    heads = (_apart(x, parts) for x in (grad, query, key, value, output, total))
    shares = flash_backward(*heads, 0.0, causal, attn_mask=bias, scale=scaling)
    return [_in_a_row(x) for x in shares]


def _apart(x: torch.Tensor, parts: int) -> torch.Tensor:
    """The tensor as [parts, heads, tokens of one part, ...], as the kernel needs it."""
    return x.view(parts, x.shape[0] // parts, *x.shape[1:]).transpose(1, 2)


def _in_a_row(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Sequence[Packed], scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp. All rests of a row attend to its prefix in one call, as one segment. Each rest attends to
    itself separately."""
    prefixes, rests = [row.prefix for row in rows], [sum(row.rests) for row in rows]
    (q, queries), (k, keys), (v, values) = _cut((query, key, value), (sum(prefixes), sum(rests)))
    parts: list[Segment] = [_apart_causal(q, k, v, prefixes, scaling)] if len(q) else []
    if len(queries):
        near, near_total = _apart_causal(queries, keys, values, [rest for row in rows for rest in row.rests], scaling)
        (of_rows,), (row_keys, row_values) = _cut((queries,), rests), _cut((k, v), prefixes)
        by_row = zip(of_rows, row_keys, row_values, strict=True)
        far, far_total = concatenated([_far(q, k, v, scaling) for q, k, v in by_row])
        both = torch.logaddexp(far_total, near_total)
        far *= (far_total - both).exp_().unsqueeze(-1)
        far += near.mul_((near_total - both).exp_().unsqueeze(-1))
        parts.append((far, both))
    output, total = concatenated(parts)
    return output, total


def gradients(
    of: Segment, key: torch.Tensor, value: torch.Tensor, rows: Sequence[Packed], scaling: float
) -> list[torch.Tensor]:
    """The gradients of queries, keys and values. `of` is as in `kernel_gradients`."""
    prefixes, rests = [row.prefix for row in rows], [sum(row.rests) for row in rows]
    sizes = sum(prefixes), sum(rests)
    (k, keys), (v, values) = _cut((key, value), sizes)
    prefix, rest = zip(*_cut(of, sizes), strict=True)
    parts = [_apart_causal_gradients(prefix, k, v, prefixes, scaling)] if len(k) else []
    if len(keys):
        near = _apart_causal_gradients(rest, keys, values, [rest for row in rows for rest in row.rests], scaling)
        row_keys, row_values = _cut((k, v), prefixes)
        by_row = zip(zip(*_cut(rest, rests), strict=True), row_keys, row_values, strict=True)
        far = concatenated([_far_gradients(of, k, v, scaling) for of, k, v in by_row])
        near[0].add_(far[0])
        for own, share in zip(parts[0][1:], far[1:], strict=True) if parts else ():
            own.add_(share)
        parts.append(near)
    return concatenated(parts)


def _far(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of all rests of a row to its prefix. Without a prefix they see nothing here."""
    if len(q) and len(k):
        return kernel(q, k, v, scaling)
    return torch.zeros_like(q), q.new_full(q.shape[:2], BLOCKED)


def _far_gradients(of: Segment, k: torch.Tensor, v: torch.Tensor, scaling: float) -> list[torch.Tensor]:
    if len(of[1]) and len(k):
        return kernel_gradients(of, k, v, scaling)
    return [torch.zeros_like(x) for x in (of[1], k, v)]


def _apart_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Iterable[int], scaling: float
) -> list[torch.Tensor]:
    """Causal attention of each segment to itself, for segments of these lengths."""
    counts, together = _alike(lengths)
    segments = zip(*_cut((q, k, v), together), counts, strict=True)
    return concatenated([kernel(q, k, v, scaling, parts=n, causal=True) for q, k, v, n in segments])


def _apart_causal_gradients(
    of: Segment, k: torch.Tensor, v: torch.Tensor, lengths: Iterable[int], scaling: float
) -> list[torch.Tensor]:
    counts, together = _alike(lengths)
    segments = zip(zip(*_cut(of, together), strict=True), *_cut((k, v), together), counts, strict=True)
    return concatenated([kernel_gradients(own, k, v, scaling, parts=n, causal=True) for own, k, v, n in segments])


def _alike(lengths: Iterable[int]) -> tuple[list[int], list[int]]:
    """For each run of segments with equal length: how many segments it has, and how many tokens. Empty segments are
    left out."""
    runs = [(len(list(run)), size) for size, run in groupby(length for length in lengths if length > 0)]
    return [count for count, _ in runs], [count * size for count, size in runs]


def _cut(tensors: Segment, sizes: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
    return [torch.split_with_sizes(x, list(sizes)) for x in tensors]


def concatenated(parts: Sequence[Segment]) -> list[torch.Tensor]:
    """Concatenate the corresponding tensors of all parts along the tokens."""
    if len(parts) == 1:
        return list(parts[0])
    return [torch.cat(x) for x in zip(*parts, strict=True)]
