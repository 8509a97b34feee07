"""Linear layers that are fast for few rows, as when most answers of a batch have ended.

Our own because torch's way to `x @ weight.T` is slow on a CPU for fewer than about 50 rows: all products of
SmolLM2-135M for 16 rows take 167 ms on two cores, and 80 ms as `(weight @ x.T).T`. If `x` lies in memory feature by
feature, so that nothing has to be turned round, that is the faster way up to about 130 rows (one core, products of one
layer: 64 rows 4.6 ms instead of 5.1, 48 rows 2.7 instead of 4.1).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

FEW = range(5, 49)
"""Numbers of rows for which the product is turned round."""

FEATURES_FIRST = range(5, 129)
"""Numbers of rows which had better lie in memory feature by feature."""


def as_columns(memory: torch.Tensor, tokens: int) -> torch.Tensor:
    """All of `memory` as [features, tokens], laid out as suits the product with a weight."""
    return memory.view(-1, tokens) if tokens in FEATURES_FIRST else memory.view(tokens, -1).t()


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


class Product:
    """A linear layer over columns, without gradients: `x` is [features, tokens], and so is its result. It reads the
    parameters of the layer."""

    __slots__ = ("bias", "weight")

    def __init__(self, layer: Linear) -> None:
        self.weight = layer.weight.detach()
        self.bias = None if layer.bias is None else layer.bias.detach()[:, None]

    def into(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Write the result to `out`."""
        torch.mm(self.weight, x, out=out)
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add the result to `total`."""
        total.addmm_(self.weight, x)
        return total if self.bias is None else total.add_(self.bias)


def replace_linears(model: nn.Module) -> None:
    """Put `Linear` in the place of every plain linear layer. Only for models on a CPU."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, Linear(child.weight, child.bias))  # type: ignore[arg-type]
