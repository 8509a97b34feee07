"""A weight in panels: laid out so that a matrix product reads its memory from beginning to end."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from loopwright.models.linear import Linear
from loopwright.models.native.library import Library
from loopwright.models.native.structures import NativeProduct


def empty_floats(*shape: int) -> torch.Tensor:
    """An uninitialised float32 tensor for C to write to. The type is explicit, because torch's default type may be
    another one while a model is loaded."""
    return torch.empty(*shape, dtype=torch.float32, device="cpu")


class Panels:
    """A copy of linear layers with the same input, as one matrix product."""

    def __init__(self, layers: Sequence[Linear], library: Library) -> None:
        self._library = library
        weights = [layer.weight.detach() for layer in layers]
        weight = (weights[0] if len(weights) == 1 else torch.cat(weights)).contiguous()
        (outputs, inputs), panel = weight.shape, library.panel
        self._panels = empty_floats(-(-outputs // panel) * inputs * panel)
        library.functions.loopwright_pack(
            ctypes.c_void_p(weight.data_ptr()),
            ctypes.c_int64(outputs),
            ctypes.c_int64(inputs),
            ctypes.c_void_p(self._panels.data_ptr()),
            ctypes.c_int(torch.get_num_threads()),
        )
        has_bias = any(layer.bias is not None for layer in layers)
        self._bias = torch.cat([_bias(layer) for layer in layers]) if has_bias else None
        bias = None if self._bias is None else self._bias.data_ptr()
        self.structure = NativeProduct(self._panels.data_ptr(), bias, outputs, inputs)

    def into(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the product with `rows` [tokens, inputs] to `out`. This runs the product alone, outside a step."""
        self._library.functions.loopwright_product(
            ctypes.byref(self.structure),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_int64(len(rows)),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int(torch.get_num_threads()),
        )


def _bias(layer: Linear) -> torch.Tensor:
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()
