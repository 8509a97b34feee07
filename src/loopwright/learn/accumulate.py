"""Adds gradients to parameters directly in the matrix product that computes them, without a separate tensor.

The parts of the model with a hand-written backward pass return only the gradient of their input to autograd.
"""

from __future__ import annotations

import torch
from torch import nn

from loopwright.models.linear import Linear


def add_product(parameter: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left @ right` to the parameter's gradient."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = left @ right
    else:
        parameter.grad.addmm_(left, right)


def add(parameter: nn.Parameter, grad: torch.Tensor) -> None:
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
