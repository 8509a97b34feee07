"""Exact attention over one packed row without a mask: the prefix on itself, each rest on the prefix and on itself.

Our own because a dense mask makes the kernel compute what it hides: twice the work for eight short answers after a long
prompt, and the number of chains times the work for long ones. Softmax attention over two sets of keys is the sum of
both, weighted by their log-sum-exp; and the backward kernel, given the merged output and log-sum-exp, yields each set's
share of the gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from loopwright.core.packing import Packed
from loopwright.models.attention import flash, flash_backward


class _SharedPrefix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float
    ) -> torch.Tensor:
        sizes = (row.prefix, *row.rests)
        q, k, v = (torch.split_with_sizes(x, sizes, dim=2) for x in (query, key, value))
        output, total = flash(q[0], k[0], v[0], 0.0, True, scale=scaling)
        outputs, totals = [output], [total]
        for i in range(1, len(sizes)):
            if sizes[i] == 0:
                continue
            far, far_total = flash(q[i], k[0], v[0], 0.0, False, scale=scaling)
            near, near_total = flash(q[i], k[i], v[i], 0.0, True, scale=scaling)
            total = torch.logaddexp(far_total, near_total)
            far *= (far_total - total).exp_().unsqueeze(-1)
            far += near.mul_((near_total - total).exp_().unsqueeze(-1))
            outputs.append(far)
            totals.append(total)
        result = torch.cat(outputs, dim=2)
        ctx.save_for_backward(query, key, value, result, torch.cat(totals, dim=2))
        ctx.sizes, ctx.scaling = sizes, scaling
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        query, key, value, result, totals = ctx.saved_tensors
        tensors = (grads[0], query, key, value, result, totals)
        g, q, k, v, o, t = (torch.split_with_sizes(x, ctx.sizes, dim=2) for x in tensors)

        def share(i: int, j: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            """What segment i's queries give to their own gradient, and to that of segment j's keys and values."""
            mine = flash_backward(g[i], q[i], k[j], v[j], o[i], t[i], 0.0, i == j, scale=ctx.scaling)
            return mine[0], mine[1], mine[2]

        dq, dk, dv = ([x] for x in share(0, 0))
        for i in range(1, len(ctx.sizes)):
            if ctx.sizes[i] == 0:
                continue
            near_q, near_k, near_v = share(i, i)
            far_q, far_k, far_v = share(i, 0)
            dq.append(near_q.add_(far_q))
            dk.append(near_k)
            dv.append(near_v)
            dk[0] += far_k
            dv[0] += far_v
        return torch.cat(dq, dim=2), torch.cat(dk, dim=2), torch.cat(dv, dim=2), None, None


def shared_prefix_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, row: Packed, scaling: float
) -> torch.Tensor:
    """Attention of one packed row on a CPU: tensors are [1, heads, row.tokens, dim], and the prefix is not empty."""
    result: torch.Tensor = _SharedPrefix.apply(query, key, value, row, scaling)  # type: ignore[no-untyped-call]
    return result
