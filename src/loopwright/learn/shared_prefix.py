"""Exact attention over one packed row without a mask: the prefix on itself, each rest on the prefix and on itself.

Our own because a dense mask makes the kernel compute what it hides: twice the work for eight short answers after a long
prompt, and the number of chains times the work for long ones. Softmax attention over two sets of keys is the sum of
both, weighted by their log-sum-exp; and the backward kernel, given the merged output and log-sum-exp, yields each set's
share of the gradients.

Rests of one length that stand side by side are one call: for short ones, calling costs more than what is computed.

Tensors are [tokens, heads, dim], as products leave them, and log-sum-exps [tokens, heads].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from loopwright.core.packing import Packed
from loopwright.models.attention import flash, flash_backward

Segment = Sequence[torch.Tensor]
"""Some tensors of the same tokens."""


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
    """One call of the kernel: the output and its log-sum-exp. So many equal `parts` of the tokens are each alone."""
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
    """What queries give to their own gradient, and to that of some keys and values. `of` are the gradient of their
    output, the queries, the output and its log-sum-exp, over all keys that they see."""
    grad, query, output, total = of
    heads = (_apart(x, parts) for x in (grad, query, key, value, output, total))
    shares = flash_backward(*heads, 0.0, causal, attn_mask=bias, scale=scaling)
    return [_in_a_row(x) for x in shares]


def _apart(x: torch.Tensor, parts: int) -> torch.Tensor:
    """[parts, heads, tokens of one, ...], as the kernel takes it."""
    return x.reshape(parts, len(x) // parts, *x.shape[1:]).transpose(1, 2)


def _in_a_row(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a row whose prefix is not empty. The rests look at the prefix in one call, as if they
    were one segment; only at themselves they look apart."""
    (q, queries), (k, keys), (v, values) = _cut((query, key, value), (row.prefix, row.tokens - row.prefix))
    own = kernel(q, k, v, scaling, causal=True)
    counts, together = _alike(row.rests)
    if not counts:
        return own
    far, far_total = kernel(queries, k, v, scaling)
    apart = zip(*_cut((queries, keys, values), together), counts, strict=True)
    near, near_total = _joined([kernel(q, k, v, scaling, parts=n, causal=True) for q, k, v, n in apart])
    both = torch.logaddexp(far_total, near_total)
    far *= (far_total - both).exp_().unsqueeze(-1)
    far += near.mul_((near_total - both).exp_().unsqueeze(-1))
    output, total = _joined([own, (far, both)])
    return output, total


def gradients(of: Segment, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float) -> list[torch.Tensor]:
    """The gradients of queries, keys and values; `of` as in `kernel_gradients`."""
    sizes = (row.prefix, row.tokens - row.prefix)
    (k, keys), (v, values) = _cut((key, value), sizes)
    prefix, rest = zip(*_cut(of, sizes), strict=True)
    dq, dk, dv = kernel_gradients(prefix, k, v, scaling, causal=True)
    counts, together = _alike(row.rests)
    if not counts:
        return [dq, dk, dv]
    far_q, far_k, far_v = kernel_gradients(rest, k, v, scaling)
    apart = zip(zip(*_cut(rest, together), strict=True), *_cut((keys, values), together), counts, strict=True)
    near = [kernel_gradients(own, k, v, scaling, parts=n, causal=True) for own, k, v, n in apart]
    near_q, near_k, near_v = _joined(near)
    return _joined([(dq, dk.add_(far_k), dv.add_(far_v)), (near_q.add_(far_q), near_k, near_v)])


def _alike(rests: Sequence[int]) -> tuple[list[int], list[int]]:
    """How many rests of one length follow each other, and how many tokens they have together. Empty ones are none."""
    runs = [(len(list(run)), size) for size, run in groupby(rest for rest in rests if rest > 0)]
    return [count for count, _ in runs], [count * size for count, size in runs]


def _cut(tensors: Segment, sizes: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
    return [torch.split_with_sizes(x, list(sizes)) for x in tensors]


def _joined(parts: Sequence[Segment]) -> list[torch.Tensor]:
    """What belongs together, one after the other along the tokens."""
    return [torch.cat(x) for x in zip(*parts, strict=True)]
