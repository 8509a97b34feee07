"""The matrix products of a forward pass without gradients, over columns: `x` and the result are [features, tokens].

If columns are stored feature by feature, nothing has to be transposed, and the product with a weight is faster up to
about 130 tokens (one core, products of one layer: 64 tokens 4.6 ms instead of 5.1, 48 tokens 2.7 instead of 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopwright.models.linear import Linear

FEATURES_FIRST = range(5, 129)
"""The numbers of tokens for which columns are stored feature by feature, because that is faster."""


class Product:
    """Linear layers with the same input. It uses their own parameters, not a copy."""

    def __init__(self, *layers: Linear) -> None:
        self.layers = layers
        self._parameters = [
            (layer.weight.detach(), None if layer.bias is None else layer.bias.detach()[:, None]) for layer in layers
        ]

    def into(self, parts: Sequence[torch.Tensor], x: torch.Tensor) -> None:
        """Write the result of each layer to its part."""
        for (weight, bias), part in zip(self._parameters, parts, strict=True):
            torch.mm(weight, x, out=part)
            if bias is not None:
                part.add_(bias)

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> None:
        """Add the result of the only layer to `total`."""
        ((weight, bias),) = self._parameters
        total.addmm_(weight, x)
        if bias is not None:
            total.add_(bias)


class OutputHead:
    """The last product. Its result is stored token by token."""

    def __init__(self, layer: Linear) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[features, tokens] -> [tokens, vocabulary]."""
        result: torch.Tensor = self.layer(x.t())
        return result
