"""Attention by plain matrix products, with its log-sum-exp.

It is for what torch's kernel for CPUs does not support: other devices, and values whose dimension is not that of the
queries. The scores of a few queries are computed at a time, so memory is bounded, no matter how long a row is.

Tensors are [parts, heads, tokens, dim]; log-sum-exps are [parts, heads, tokens]. Keys and values may have fewer heads
than queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from loopwright.models.attention import BLOCKED

SCORES = 2**24
"""How many scores are computed at a time: 64 MB of them."""
QUERIES = 256
"""How many queries of a head are computed at a time, at most."""
META = "meta"


class _Piece(NamedTuple):
    """Some of the queries. Of those that are not `computed`, only the shape of the result is needed."""

    queries: slice
    computed: bool = True


def product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scaling: float,
    causal: bool,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp. With `causal`, query i sees the keys up to i; `bias` [queries, keys] is added to the
    scores."""
    outputs, totals = [], []
    exact = torch.promote_types(query.dtype, torch.float32)
    for some, computed in _pieces(query, key):
        if not computed:
            few = query[:, :, some]
            outputs.append(_by_head(value.new_empty(*few.shape[:3], value.shape[-1]), key.shape[1]))
            totals.append(few.new_empty(few.shape[:3], dtype=exact))
            continue
        seen = slice(0, some.stop if causal else key.shape[2])
        scores = _scores(query[:, :, some], key[:, :, seen], scaling, _hidden(some, causal, bias, query))
        total = scores.logsumexp(dim=-1, keepdim=True)
        weights = scores.sub_(total).exp_().to(value.dtype)
        outputs.append(_by_head(weights, key.shape[1]) @ value[:, :, seen])
        totals.append(total.squeeze(-1))
    shape = (*query.shape[:2], -1, value.shape[-1])
    output = torch.cat([x.view(*shape[:2], -1, shape[3]) for x in outputs], dim=2)
    return output, torch.cat(totals, dim=2)


def product_gradients(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    total: torch.Tensor,
    *,
    scaling: float,
    causal: bool,
    bias: torch.Tensor | None,
) -> list[torch.Tensor]:
    """The gradients of queries, keys and values. `output` and `total` may be over more keys than these; then the result
    is the share of these keys."""
    heads, queries = key.shape[1], []
    exact = torch.promote_types(key.dtype, torch.float32)
    dkey, dvalue = torch.zeros_like(key, dtype=exact), torch.zeros_like(value, dtype=exact)
    inner = torch.linalg.vecdot(grad.to(exact), output.to(exact)).unsqueeze(-1)
    for some, computed in _pieces(query, key):
        if not computed:
            queries.append(torch.empty_like(query[:, :, some]))
            continue
        seen = slice(0, some.stop if causal else key.shape[2])
        q, k, v, dout = query[:, :, some], key[:, :, seen], value[:, :, seen], _by_head(grad[:, :, some], heads)
        scores = _scores(q, k, scaling, _hidden(some, causal, bias, query))
        weights = scores.sub_(total[:, :, some].unsqueeze(-1)).exp_()
        dvalue[:, :, seen] += _by_head(weights, heads).to(value.dtype).transpose(2, 3) @ dout
        dweights = (dout @ v.transpose(2, 3)).view(weights.shape).to(exact)
        dscores = _by_head(weights.mul_(dweights.sub_(inner[:, :, some])).mul_(scaling), heads).to(query.dtype)
        queries.append((dscores @ k).view(q.shape))
        dkey[:, :, seen] += dscores.transpose(2, 3) @ _by_head(q, heads)
    return [torch.cat(queries, dim=2), dkey.to(key.dtype), dvalue.to(value.dtype)]


def _pieces(query: torch.Tensor, key: torch.Tensor) -> Iterator[_Piece]:
    parts, heads, tokens, _ = query.shape
    size = min(QUERIES, max(1, SCORES // max(1, parts * heads * key.shape[2])))
    last = -(-tokens // size)
    # A plan of memory has tensors without numbers. The peak is in one of the last two pieces, because the last may be
    # small, and the scores of the piece before are still there.
    skipped = range(1, last - 3) if query.device.type == META else range(0)
    if skipped:
        yield _Piece(slice(0, size))
        yield _Piece(slice(size, skipped.stop * size), computed=False)
    for number in range(skipped.stop if skipped else 0, last):
        yield _Piece(slice(number * size, min((number + 1) * size, tokens)))


def _scores(q: torch.Tensor, k: torch.Tensor, scaling: float, hidden: torch.Tensor | None) -> torch.Tensor:
    """[parts, heads, queries, keys], in float32 if the queries are in half precision."""
    scores = (_by_head(q, k.shape[1]) @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32))
    scores = scores.mul_(scaling).view(*q.shape[:3], -1)
    if hidden is not None:
        scores[..., -hidden.shape[1] :] += hidden
    return scores


def _hidden(some: slice, causal: bool, bias: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """What is added to the scores of these queries and of the last keys that they see."""
    if causal:
        size = some.stop - some.start
        return torch.full((size, size), BLOCKED, dtype=like.dtype, device=like.device).triu_(1)
    return None if bias is None else bias[some]


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[parts, heads, tokens, dim], with the query heads that share a head of keys one after the other."""
    parts, all_heads, tokens, dim = x.shape
    return x.reshape(parts, heads, all_heads // heads * tokens, dim)
