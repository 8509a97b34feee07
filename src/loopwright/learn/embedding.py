"""Input embeddings whose gradient is added only to the rows that were used.

We do this ourselves because autograd makes a tensor as large as the whole table, and adds it to the gradient of the
head, which often shares the table. That takes 5 % of a train step at SmolLM2's shapes, for a few hundred rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from loopwright.learn.master import HALF


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, ids: torch.Tensor, ignored: int | None) -> torch.Tensor:
        ctx.table, ctx.ids, ctx.ignored = table, ids, ignored
        return table.detach()[ids]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None]:
        ids, grad = ctx.ids.flatten(), grads[0].flatten(0, -2)
        if ctx.ignored is not None:
            used = ids != ctx.ignored
            ids, grad = ids[used], grad[used]
        if ctx.table.grad is None:
            ctx.table.grad = torch.zeros_like(ctx.table)
        ctx.table.grad.index_add_(0, *(_summed(ids, grad) if grad.dtype in HALF else (ids, grad)))
        return None, None, None


def _summed(ids: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of equal ids added up in float32. A GPU would round the sum in half precision after each of them.

    There are as many rows as before, so that no device is asked how many ids differ: those that are left over are zeros
    for id 0."""
    ordered, order = ids.sort()
    place = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    sums = torch.zeros(grad.shape, dtype=torch.float32, device=grad.device).index_add_(0, place, grad[order].float())
    return torch.zeros_like(ids).scatter_(0, place, ordered), sums.to(grad.dtype)


def embed(embedding: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    """Compute `embedding(ids)`. For a plain table the gradient is added to `embedding.weight.grad` during backward."""
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None or embedding.scale_grad_by_freq:
        own: torch.Tensor = embedding(ids)
        return own
    result: torch.Tensor = _Rows.apply(embedding.weight, ids, embedding.padding_idx)  # type: ignore[no-untyped-call]
    return result
