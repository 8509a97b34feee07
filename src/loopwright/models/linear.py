"""Linear layers that are fast for few rows, for example when most answers of a batch have ended.

We do this ourselves because torch computes `x @ weight.T` slowly on a CPU for fewer than about 50 rows. All products of
SmolLM2-135M for 16 rows take 167 ms on two cores, but 80 ms as `(weight @ x.T).T`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

FEW = range(5, 49)
"""The numbers of rows for which the transposed product is used."""


class Linear(nn.Module):
    """Shares the parameters of the module that it replaces."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.numel() // x.shape[-1]
        if rows not in FEW or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        flat = torch.mm(self.weight, x.reshape(rows, -1).t()).t()
        if self.bias is not None:
            flat = flat + self.bias
        return flat.reshape(*x.shape[:-1], -1).contiguous()


def replace_linears(model: nn.Module) -> None:
    """Replace every plain linear layer by `Linear`. Only for models on a CPU."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, Linear(child.weight, child.bias))  # type: ignore[arg-type]
