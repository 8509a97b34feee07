"""Adds gradients to parameters directly in the matrix product that computes them, without a separate tensor.

The parts of the model with a hand-written backward pass return only the gradient of their input to autograd. In half
precision a sum of many products would lose what is small beside it, so such sums are float32, and rounded once.
"""

from __future__ import annotations

import torch

from loopwright.learn.master import HALF
from loopwright.models.device import CUDA
from loopwright.models.linear import Linear


def add_product(parameter: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left @ right` to the parameter's gradient."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = left @ right
    else:
        parameter.grad.addmm_(left, right)


class ProductSum:
    """The sum of several products, which is added to the gradient of one parameter."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter = parameter
        self._sum: torch.Tensor | None = None

    def add(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Add `left @ right`."""
        if self._parameter.dtype not in HALF:
            add_product(self._parameter, left, right)
        elif self._parameter.requires_grad:
            self._sum = _exact_product(left, right) if self._sum is None else _add_exactly(self._sum, left, right)

    def finish(self) -> None:
        """To be called after the last product."""
        if self._sum is not None:
            add(self._parameter, self._sum.to(self._parameter.dtype))


def _exact_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of two matrices in half precision, in float32. Only CUDA computes it without copies of both."""
    if left.device.type == CUDA:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _add_exactly(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.device.type == CUDA:
        return total.add_(_exact_product(left, right))
    return total.addmm_(left.float(), right.float())


def add(parameter: torch.Tensor, grad: torch.Tensor) -> None:
    """Add `grad` to the parameter's gradient. `grad` may be kept, so nobody else may use it."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad


def add_linear(layer: Linear, x: torch.Tensor, grad: torch.Tensor) -> None:
    """Add the gradients of a linear layer. `x` is its input and `grad` its output's gradient, [tokens, features]
    each."""
    add_product(layer.weight, grad.t(), x)
    if layer.bias is not None:
        add(layer.bias, grad.sum(dim=0))
