"""Products whose weights lie in memory as MKL wants them.

A product of torch's has MKL lay out the weight anew each time. For about 64 rows, a batch of decoding, that is a third
of the time: all products of SmolLM2-135M take 110 ms on two cores, and 73 ms with weights that were laid out
beforehand. Fewer rows than `PAYS` are faster turned round, and with more rows it hardly counts. What is laid out is a
copy of the parameters as they are at the first use (0.16 s): it has to be thrown away when they change. Nothing else
would tell, since a fused optimiser does not count a tensor's versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from loopwright.models.linear import Linear
from loopwright.models.product import Columns, Head, Product

ROWS = 64
"""The number of rows for which weights are laid out. MKL wants to be asked with just as many."""

PAYS = range(49, ROWS + 1)
"""Numbers of rows that had better be padded to `ROWS`."""

SMALLEST = 2**18
"""Numbers in a layer's weight. The caches of a core hold smaller ones: nothing is gained."""

LARGEST = 2**30
"""Bytes of all weights. For SmolLM2's 0.5 GB, MKL asks for 1.9 and fills 0.5 to 1.4 of them: too much of what a larger
model needs itself."""


def is_worth_it(layers: Sequence[Linear], *, typical: Linear) -> bool:
    """Whether a model with these linear layers, most of which are like the `typical` one, gains and may have a copy."""
    weights = [layer.weight for layer in layers]
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
        and typical.weight.numel() >= SMALLEST
        and sum(weight.nbytes for weight in weights) <= LARGEST
    )


class Prepacked:
    """Linear layers that read the same rows, as one product."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        self._layers = layers
        weight = layers[0].weight.detach()
        # Of the plain weight the kernel reads the shape alone.
        self._shape = weight.new_empty(1, 1).expand(sum(len(layer.weight) for layer in layers), weight.shape[1])
        self._packed: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, features] -> [rows, features of all layers, one after the other], of at most `ROWS` rows."""
        if (missing := ROWS - len(rows)) < 0:
            raise RuntimeError(f"a prepacked weight takes {ROWS} rows, not {len(rows)}")
        if self._packed is None:
            self._packed = self._pack()
        weight, bias = self._packed
        given = pad(rows, (0, 0, 0, missing)) if missing else rows
        result: torch.Tensor = torch.ops.mkl._mkl_linear(given, weight, self._shape, bias, ROWS)
        return result[: len(rows)] if missing else result

    def _pack(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        weights = [layer.weight.detach() for layer in self._layers]
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        has_bias = any(layer.bias is not None for layer in self._layers)
        bias = torch.cat([_bias(layer) for layer in self._layers]) if has_bias else None
        return torch.ops.mkl._mkl_reorder_linear_weight(whole, ROWS), bias


class PrepackedProduct(Product):
    """The same product by prepacked weights. Columns had better lie token by token."""

    def __init__(self, *layers: Linear) -> None:
        super().__init__(*layers)
        self._rows = Prepacked(layers)

    def into(self, out: Columns, x: torch.Tensor) -> None:
        out.whole.t().copy_(self._rows(x.t()))

    def results(self, parts: Sequence[torch.Tensor], x: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(self._rows(x.t()).t(), [len(part) for part in parts])

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> None:
        total.t().add_(self._rows(x.t()))


class PrepackedHead(Head):
    """The same head by a prepacked weight."""

    def __init__(self, layer: Linear) -> None:
        super().__init__(layer)
        self._rows = Prepacked([layer])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._rows(x.t())


def _bias(layer: Linear) -> torch.Tensor:
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()
