"""One call of attention over packed tokens, with its log-sum-exp, which is needed to merge several.

Tensors are [tokens, heads, dim], as matrix products return them. Log-sum-exps are [tokens, heads].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopwright.learn.products import product_attention, product_gradients
from loopwright.models.attention import flash, flash_backward, on_flash

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
    """The output and its log-sum-exp. The tokens are split into `parts` equal parts, and no part sees another."""
    q, k, v = (_apart(x, parts) for x in (query, key, value))
    if on_flash(query, value):
        output, total = flash(q, k, v, 0.0, causal, attn_mask=bias, scale=scaling)
    else:
        output, total = product_attention(q, k, v, scaling=scaling, causal=causal, bias=bias)
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
    heads = [_apart(x, parts) for x in (grad, query, key, value, output, total)]
    if on_flash(query, value):
        shares = flash_backward(*heads, 0.0, causal, attn_mask=bias, scale=scaling)
    else:
        shares = product_gradients(*heads, scaling=scaling, causal=causal, bias=bias)
    return [_in_a_row(x) for x in shares]


def _apart(x: torch.Tensor, parts: int) -> torch.Tensor:
    """The tensor as [parts, heads, tokens of one part, ...], as the kernel needs it."""
    return x.view(parts, x.shape[0] // parts, *x.shape[1:]).transpose(1, 2)


def _in_a_row(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def slices(tensors: Segment, sizes: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
    """Each tensor in parts of these sizes."""
    return [torch.split_with_sizes(x, list(sizes)) for x in tensors]


def concatenated(parts: Sequence[Segment]) -> list[torch.Tensor]:
    """Concatenate the corresponding tensors of all parts along the tokens."""
    if len(parts) == 1:
        return list(parts[0])
    return [torch.cat(x) for x in zip(*parts, strict=True)]
