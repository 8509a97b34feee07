"""The layers of a Llama-like model for training: each half of a layer with a hand-written forward and backward pass.

We do this ourselves because modules and autograd read the activations, which are larger than any cache, many more times
than the arithmetic needs: to rotate, to add two gradients, and to store values that are faster to compute again than to
read. A half keeps its input and the results of its matrix products. Gradients of parameters are added to their `.grad`
during backward, which may run only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, silu

from loopwright.learn.accumulate import add, add_linear
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.models.linear import Linear
from loopwright.models.norm import RmsNorm, rms_norm, rms_norm_gradient


@dataclass(frozen=True, slots=True)
class AttentionHalf:
    """The parts of a layer up to the output of its attention."""

    norm: RmsNorm
    query: Linear
    key: Linear
    value: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    output: Linear
    scaling: float
    window: int | None


@dataclass(frozen=True, slots=True)
class FeedForwardHalf:
    """The feed-forward parts of a layer."""

    norm: RmsNorm
    gate: Linear
    up: Linear
    down: Linear


class PassContext:
    """What all layers of one pass share: which token sees which, and the rotary angles."""

    def __init__(self, plan: SharedPrefixPlan, cos: torch.Tensor, sin: torch.Tensor, dim: int) -> None:
        self.plan = plan
        self._cos = cos
        self._sin = sin
        self._back = -sin.roll(sin.shape[-1] // 2, dims=-1)
        self._dim = dim

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, features] as [tokens, heads, dim]."""
        return x.view(len(x), -1, self._dim)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        return _turned(x, self._cos, self._sin)

    def turned_back(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of the heads before the rotation, given the gradient after it."""
        return _turned(grad, self._cos, self._back)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `x`. The two numbers of a pair are half a head apart."""
    result = x * cos
    (low, high), (sin_low, sin_high) = x.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    result_low, result_high = result.chunk(2, dim=-1)
    result_low.addcmul_(high, sin_low, value=-1)
    result_high.addcmul_(low, sin_high)
    return result


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, half: AttentionHalf, setting: PassContext, keep: torch.Tensor | None
    ) -> torch.Tensor:
        normed, scale = rms_norm(x, half.norm.weight, half.norm.eps)
        query, key, value = (
            setting.heads(linear(normed, part.weight, part.bias)) for part in (half.query, half.key, half.value)
        )
        scaled_query, query_scale = _head_norm(half.query_norm, query)
        scaled_key, key_scale = _head_norm(half.key_norm, key)
        turned_query, turned_key = setting.turned(scaled_query), setting.turned(scaled_key)
        seen, total = setting.plan.compute(turned_query, turned_key, value, half.scaling, half.window)
        # The heads before their norm are needed only if they have a norm.
        plain = (query, query_scale, key, key_scale) if query_scale is not None else (None,) * 4
        ctx.save_for_backward(x, scale, *plain, turned_query, turned_key, value, seen, total, keep)
        ctx.half, ctx.setting = half, setting
        flat = seen.flatten(1)
        if keep is not None:
            x, flat = x[keep], flat[keep]
        return _added(x, half.output, flat)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        half: AttentionHalf = ctx.half
        setting: PassContext = ctx.setting
        x, scale, query, query_scale, key, key_scale, turned_query, turned_key, value, seen, total, keep = (
            ctx.saved_tensors
        )
        grad, flat = grads[0], seen.flatten(1)
        add_linear(half.output, flat if keep is None else flat[keep], grad)
        dseen = grad @ half.output.weight
        if keep is not None:
            grad, dseen = _spread(grad, keep, len(x)), _spread(dseen, keep, len(x))
        shares = setting.plan.gradients(
            setting.heads(dseen), turned_query, turned_key, value, seen, total, half.scaling, half.window
        )
        dquery = _head_norm_gradient(half.query_norm, setting.turned_back(shares[0]), query, query_scale)
        dkey = _head_norm_gradient(half.key_norm, setting.turned_back(shares[1]), key, key_scale)
        parts = ((half.query, dquery), (half.key, dkey), (half.value, shares[2]))
        dx = _normed_gradient(half.norm, x, scale, [(part, share.flatten(1)) for part, share in parts])
        return dx.add_(grad), None, None, None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, half: FeedForwardHalf) -> torch.Tensor:
        normed, scale = rms_norm(x, half.norm.weight, half.norm.eps)
        gate, up = (linear(normed, part.weight, part.bias) for part in (half.gate, half.up))
        ctx.save_for_backward(x, scale, gate, up)
        ctx.half = half
        return _added(x, half.down, silu(gate).mul_(up))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        half: FeedForwardHalf = ctx.half
        x, scale, gate, up = ctx.saved_tensors
        grad, opened = grads[0], silu(gate)
        add_linear(half.down, opened * up, grad)
        dinner = grad @ half.down.weight
        dup = opened.mul_(dinner)
        dgate = torch.ops.aten.silu_backward(dinner.mul_(up), gate)
        dx = _normed_gradient(half.norm, x, scale, [(half.gate, dgate), (half.up, dup)])
        return dx.add_(grad), None


def _added(x: torch.Tensor, layer: Linear, inner: torch.Tensor) -> torch.Tensor:
    result = torch.addmm(x, inner, layer.weight.t())
    return result if layer.bias is None else result.add_(layer.bias)


def _spread(kept: torch.Tensor, keep: torch.Tensor, tokens: int) -> torch.Tensor:
    """The rows of all tokens: those in `keep` have the values of `kept`, all others are 0."""
    return kept.new_zeros(tokens, kept.shape[1]).index_copy_(0, keep, kept)


def _normed_gradient(
    norm: RmsNorm, x: torch.Tensor, scale: torch.Tensor, parts: list[tuple[Linear, torch.Tensor]]
) -> torch.Tensor:
    """The gradient of a norm's input, given the gradients of the outputs of the linear layers after it. It also adds
    the gradients of all their parameters."""
    normed = (x * scale).mul_(norm.weight)
    for part, grad in parts:
        add_linear(part, normed, grad)
    (first, share), *others = parts
    dnormed = share @ first.weight
    for part, grad in others:
        dnormed.addmm_(grad, part.weight)
    dx, dweight = rms_norm_gradient(dnormed, x, norm.weight, scale)
    add(norm.weight, dweight)
    return dx


def _head_norm(norm: RmsNorm | None, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    return (x, None) if norm is None else rms_norm(x, norm.weight, norm.eps)


def _head_norm_gradient(norm: RmsNorm | None, grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    if norm is None:
        return grad
    dx, dweight = rms_norm_gradient(grad, x, norm.weight, scale)
    add(norm.weight, dweight)
    return dx


def attention_half(
    x: torch.Tensor, half: AttentionHalf, setting: PassContext, keep: torch.Tensor | None = None
) -> torch.Tensor:
    """`x` [tokens, features] plus the layer's attention. With `keep`, only these tokens are returned."""
    result: torch.Tensor = _Attention.apply(x, half, setting, keep)  # type: ignore[no-untyped-call]
    return result


def feed_forward_half(x: torch.Tensor, half: FeedForwardHalf) -> torch.Tensor:
    """`x` [tokens, features] plus the layer's feed-forward result."""
    result: torch.Tensor = _FeedForward.apply(x, half)  # type: ignore[no-untyped-call]
    return result
