"""Exact attention over one packed row without a mask: the prefix on itself, each rest on the prefix and on itself.

Our own because a dense mask makes the kernel compute what it hides: twice the work for eight short answers after a long
prompt, and the number of chains times the work for long ones. Softmax attention over two sets of keys is the sum of
both, weighted by their log-sum-exp; and the backward kernel, given the merged output and log-sum-exp, yields each set's
share of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loopwright.core.packing import Packed
from loopwright.models.attention import flash, flash_backward


class _SharedPrefix(torch.autograd.Function):
    """The rests look at the prefix in one call, as if they were one segment; only at themselves they look apart."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float
    ) -> torch.Tensor:
        rests = [rest for rest in row.rests if rest > 0]
        cut = (row.prefix, sum(rests))
        (q, queries), (k, keys), (v, values) = (torch.split_with_sizes(x, cut, dim=2) for x in (query, key, value))
        result: torch.Tensor
        result, total = flash(q, k, v, 0.0, True, scale=scaling)
        if rests:
            far, far_total = flash(queries, k, v, 0.0, False, scale=scaling)
            apart = zip(*(torch.split_with_sizes(x, rests, dim=2) for x in (queries, keys, values)), strict=True)
            near, near_total = _joined([flash(*one, 0.0, True, scale=scaling) for one in apart])
            both = torch.logaddexp(far_total, near_total)
            far *= (far_total - both).exp_().unsqueeze(-1)
            far += near.mul_((near_total - both).exp_().unsqueeze(-1))
            result, total = _joined([(result, total), (far, both)])
        ctx.save_for_backward(query, key, value, result, total)
        ctx.cut, ctx.rests, ctx.scaling = cut, rests, scaling
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        query, key, value, result, total = ctx.saved_tensors
        prefix, rest = _split((grads[0], query, key, value, result, total), ctx.cut)

        def shares(of: Segment, to: Segment, causal: bool) -> tuple[torch.Tensor, ...]:
            """What the queries of one segment give to their own gradient, and to that of another's keys and values."""
            g, q, _, _, o, t = of
            return tuple(flash_backward(g, q, to[2], to[3], o, t, 0.0, causal, scale=ctx.scaling))

        dq, dk, dv = shares(prefix, prefix, True)
        if ctx.rests:
            far_q, far_k, far_v = shares(rest, prefix, False)
            near_q, near_k, near_v = _joined([shares(one, one, True) for one in _split(rest, ctx.rests)])
            dk += far_k
            dv += far_v
            dq, dk, dv = _joined([(dq, dk, dv), (near_q.add_(far_q), near_k, near_v)])
        return dq, dk, dv, None, None


Segment = Sequence[torch.Tensor]
"""The gradient of the output, queries, keys, values, the output and its log-sum-exp of some tokens of a row."""


def _split(tensors: Segment, sizes: Sequence[int]) -> list[Segment]:
    return list(zip(*(torch.split_with_sizes(x, list(sizes), dim=2) for x in tensors), strict=True))


def _joined(parts: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """What belongs together, one after the other along the tokens."""
    return [torch.cat(x, dim=2) for x in zip(*parts, strict=True)]


def shared_prefix_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float
) -> torch.Tensor:
    """Attention of one packed row on a CPU: tensors are [1, heads, row.tokens, dim], and the prefix is not empty."""
    result: torch.Tensor = _SharedPrefix.apply(query, key, value, row, scaling)  # type: ignore[no-untyped-call]
    return result
