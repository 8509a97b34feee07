"""Linear layers whose weights lie in memory as MKL wants them.

A product of torch's has MKL lay out the weight anew each time. For about 64 rows, a batch of decoding, that is a third
of the time: all products of SmolLM2-135M take 110 ms on two cores, and 73 ms with weights that were laid out
beforehand. Fewer rows than `PAYS` are faster turned round, and with more rows it hardly counts. It takes a second copy
of the weights, to be made anew (0.16 s) whenever they have changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from loopwright.models.linear import Linear

ROWS = 64
"""The number of rows for which weights are laid out. MKL wants to be asked with just as many."""

PAYS = range(49, ROWS + 1)
"""Numbers of rows that had better be padded to `ROWS`."""

SMALLEST = 2**18
"""Numbers in the largest weight. A core's cache holds smaller ones, and more calls would cost more than is saved."""

SHARE_OF_MEMORY = 1 / 16
"""Of the machine's memory, at most so much goes to the second copy."""


def pays(rows: int) -> bool:
    return rows in PAYS


def is_worth_it(weights: Sequence[torch.Tensor]) -> bool:
    """Whether a model with these weights gains by a second copy of them, and may have it."""
    fits = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    if not fits or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    largest, all_bytes = max(weight.numel() for weight in weights), sum(weight.nbytes for weight in weights)
    return largest >= SMALLEST and all_bytes <= SHARE_OF_MEMORY * memory


class Prepacked:
    """Linear layers that read the same rows, as one product."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        self._layers = layers
        # Of the plain weight the kernel reads the shape alone.
        self._shape = torch.empty(1, 1).expand(sum(len(layer.weight) for layer in layers), layers[0].weight.shape[1])
        self._weight: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def outdate(self) -> None:
        """The parameters have changed. It has to be told: a fused optimiser does not count a tensor's versions."""
        self._weight = None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, features] -> [rows, features of all layers, one after the other]; for numbers of rows that pay."""
        if self._weight is None:
            self._pack()
        missing = ROWS - len(rows)
        given = pad(rows, (0, 0, 0, missing)) if missing else rows
        result: torch.Tensor = torch.ops.mkl._mkl_linear(given, self._weight, self._shape, self._bias, ROWS)
        return result[: len(rows)] if missing else result

    def _pack(self) -> None:
        weights = [layer.weight.detach() for layer in self._layers]
        self._weight = torch.ops.mkl._mkl_reorder_linear_weight(torch.cat(weights), ROWS)
        if any(layer.bias is not None for layer in self._layers):
            self._bias = torch.cat([_bias(layer) for layer in self._layers])


def _bias(layer: Linear) -> torch.Tensor:
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()
