"""Exact attention over one packed row without a mask: the prefix on itself, each rest on the prefix and on itself.

Our own because a dense mask makes the kernel compute what it hides: twice the work for eight short answers after a long
prompt, and the number of chains times the work for long ones. Softmax attention over two sets of keys is the sum of
both, weighted by their log-sum-exp; and the backward kernel, given the merged output and log-sum-exp, yields each set's
share of the gradients.

Tensors are [tokens, heads, dim], as products leave them, and log-sum-exps [tokens, heads].
"""

from __future__ import annotations

from collections.abc import Sequence

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
    causal: bool = False,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One call of the kernel: the output and its log-sum-exp."""
    heads = (x.transpose(0, 1)[None] for x in (query, key, value))
    output, total = flash(*heads, 0.0, causal, attn_mask=bias, scale=scaling)
    return output[0].transpose(0, 1), total[0].t()


def kernel_gradients(
    of: Segment,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    causal: bool = False,
    bias: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """What queries give to their own gradient, and to that of some keys and values. `of` are the gradient of their
    output, the queries, the output and its log-sum-exp, over all keys that they see."""
    grad, query, output, total = of
    heads = (x.transpose(0, 1)[None] for x in (grad, query, key, value, output))
    shares = flash_backward(*heads, total.t()[None], 0.0, causal, attn_mask=bias, scale=scaling)
    return [x[0].transpose(0, 1) for x in shares]


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a row whose prefix is not empty. The rests look at the prefix in one call, as if they
    were one segment; only at themselves they look apart."""
    (q, queries), (k, keys), (v, values) = _cut((query, key, value), (row.prefix, row.tokens - row.prefix))
    own = kernel(q, k, v, scaling, causal=True)
    rests = [rest for rest in row.rests if rest > 0]
    if not rests:
        return own
    far, far_total = kernel(queries, k, v, scaling)
    apart = zip(*_cut((queries, keys, values), rests), strict=True)
    near, near_total = _joined([kernel(q, k, v, scaling, causal=True) for q, k, v in apart])
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
    rests = [size for size in row.rests if size > 0]
    if not rests:
        return [dq, dk, dv]
    far_q, far_k, far_v = kernel_gradients(rest, k, v, scaling)
    apart = zip(zip(*_cut(rest, rests), strict=True), *_cut((keys, values), rests), strict=True)
    near_q, near_k, near_v = _joined([kernel_gradients(own, k, v, scaling, causal=True) for own, k, v in apart])
    return _joined([(dq, dk.add_(far_k), dv.add_(far_v)), (near_q.add_(far_q), near_k, near_v)])


def _cut(tensors: Segment, sizes: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
    return [torch.split_with_sizes(x, list(sizes)) for x in tensors]


def _joined(parts: Sequence[Segment]) -> list[torch.Tensor]:
    """What belongs together, one after the other along the tokens."""
    return [torch.cat(x) for x in zip(*parts, strict=True)]
