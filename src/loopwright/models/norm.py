"""RMSNorm in as few passes over memory as torch's kernels allow.

We do this ourselves because autograd, going through `pow`, `mean`, `rsqrt` and two products, reads and writes the
activations about twenty times (1,200 x 576, forward and backward on one core: 8.1 ms, here 2.0 ms). A model has two
norms per layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SAME = 1e-5
"""How much the replacement may differ from the module that it replaces, on random numbers."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm over the last dimension, without gradients, and the scale of each row, which the gradient needs."""
    scale = _scale(x, eps)
    return (x * scale).mul_(weight), scale


def rms_norm_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `x` and `weight`, given the gradient of the norm's output."""
    # Use the gradient of a layer norm with mean 0. It subtracts the mean of grad * weight, so we add it again.
    shape, none = x.shape[-1:], torch.zeros_like(scale)
    dx, dweight, _ = torch.ops.aten.native_layer_norm_backward(
        grad.contiguous(), x, shape, none, scale, weight, None, (True, True, False)
    )
    mean = torch.matmul(grad, weight).div_(x.shape[-1]).unsqueeze(-1)
    return dx.add_(mean.mul_(scale)), dweight


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        result, scale = rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *rms_norm_gradient(grads[0], *ctx.saved_tensors), None


class RmsNorm(nn.Module):
    """Shares the weight of the module that it replaces."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return self.into(torch.empty_like(x), x)
        result: torch.Tensor = _RmsNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return result

    def into(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Write the norm of `x` to `out`, which may be `x` itself, without gradients."""
        torch.mul(x, _scale(x, self.eps), out=out)
        return out.mul_(self.weight)


class ColumnNorm:
    """The same norm over the features of columns [features, tokens], without gradients. It uses the norm's weight."""

    __slots__ = ("_eps", "_shares", "_weight", "norm")

    def __init__(self, norm: RmsNorm) -> None:
        self.norm = norm
        self._weight = norm.weight.detach()[:, None]
        self._eps = self._weight.new_tensor(norm.eps)
        self._shares = torch.full_like(self._weight, 1 / len(self._weight)).t()

    def into(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Write the norm of `x` to `out`, which is not `x` itself."""
        squares = torch.mul(x, x, out=out)
        # Compute the mean as a matrix product, which also adds the epsilon.
        torch.mul(x, torch.addmm(self._eps, self._shares, squares).rsqrt_(), out=out)
        return out.mul_(self._weight)


def _scale(x: torch.Tensor, eps: float) -> torch.Tensor:
    # Not vector_norm: it is slow for rows that are stored feature by feature.
    squares: torch.Tensor = torch.linalg.vecdot(x, x).unsqueeze(-1)
    return squares.div_(x.shape[-1]).add_(eps).rsqrt_()


@torch.no_grad()
def replace_norms(model: nn.Module) -> None:
    """Replace every module that computes the same by `RmsNorm`.

    This is tested with numbers, not by the name: norms with similar names compute different things (1 + weight, another
    order of casts).
    """
    parents = [module for module in model.modules() if any(_may_be_replaced(child) for child in module.children())]
    for parent in parents:
        for name, child in parent.named_children():
            if _may_be_replaced(child) and _is_same(mine := RmsNorm(child.weight, _eps(child)), child):  # type: ignore[arg-type]
                setattr(parent, name, mine)


def _may_be_replaced(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_parameters()}
    weight = getattr(module, "weight", None)
    return names == {"weight"} and weight is not None and weight.ndim == 1 and _eps(module) > 0


def _eps(module: nn.Module) -> float:
    eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    return eps if isinstance(eps, float) else 0.0


def _is_same(mine: RmsNorm, theirs: nn.Module) -> bool:
    if mine.weight.dtype != torch.float32:
        return False
    x = torch.randn(3, len(mine.weight), generator=torch.Generator().manual_seed(0)).to(mine.weight.device)
    try:
        # Try small numbers too, where the epsilon matters.
        return all(torch.allclose(mine(y), theirs(y), rtol=SAME, atol=SAME) for y in (x, 1e-3 * x, 5 * x + 1))
    except (RuntimeError, ValueError):  # it takes tensors of another shape
        return False
