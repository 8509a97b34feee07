"""Gradients that are added to parameters by the very product that makes them, instead of as tensors of their own.

Parts of the model whose backward pass is written by hand give autograd the gradient of their input alone.
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
    """Add `grad`, which nobody else uses, to the parameter's gradient."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad


def add_linear(layer: Linear, x: torch.Tensor, grad: torch.Tensor) -> None:
    """Add the gradients of a linear layer, given its input and its output's gradient, [tokens, features] each."""
    add_product(layer.weight, grad.t(), x)
    if layer.bias is not None:
        add(layer.bias, grad.sum(dim=0))
