"""Decode steps of a Llama-like model, each in one call of C.

We do this ourselves because a decode step in torch is hundreds of calls, and its products are slow for the rows of a
batch: for 64 rows of SmolLM2-135M, `torch.mm` takes up to twice as long as panels that were laid out before. The panels
are a copy of the weights, made at the first step. Whoever changes the weights must discard the copy: a fused optimiser
does not count a tensor's versions, so the change cannot be detected here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from loopwright.models.control_groups import free_memory
from loopwright.models.linear import Linear
from loopwright.models.native import structures
from loopwright.models.native.cells import Cells
from loopwright.models.native.library import Library
from loopwright.models.native.panels import Panels, empty_floats
from loopwright.models.norm import RmsNorm
from loopwright.models.workspace import Heads

if TYPE_CHECKING:
    from loopwright.models.lean import LeanLayer, LeanModel

LARGEST = 2**31
"""The largest number of bytes of weights that are copied. A larger model needs the memory itself."""

RESERVE = 2**28
"""How many bytes must stay free after the copy."""

MOST_QUERIES = 64
"""The largest number of query heads that share one key head: GROUP in decode.c."""


class NoRoomError(Exception):
    """There is no memory for the copy of the weights. The engine catches this and decodes with torch."""


def serves(model: LeanModel, library: Library) -> bool:
    """Whether the compiled step supports this model, and whether its weights may be copied."""
    heads = model.sizes.heads
    linears = [model.head.layer, *(linear for layer in model.layers for linear in layer.linears)]
    parameters = [model.table, model.norm.norm.weight, *(linear.weight for linear in linears)]
    shapes = {tuple(linear.weight.shape for linear in layer.linears) for layer in model.layers}
    return (
        all(x.dtype == torch.float32 and x.is_cpu and x.is_contiguous() for x in parameters)
        and heads.dim % library.lanes == 0
        and heads.queries % heads.keys == 0
        and heads.queries // heads.keys <= MOST_QUERIES
        and len(shapes) == 1
        and len(model.head.layer.weight) == len(model.table)
        and copied_bytes(model) <= LARGEST
    )


def copied_bytes(model: LeanModel) -> int:
    """How large the copy of the weights is."""
    linears = [model.head.layer, *(linear for layer in model.layers for linear in layer.linears)]
    return sum(linear.weight.nbytes for linear in linears)


class NativeStep:
    """Decode steps of one model, with a copy of its weights that is made at the first step."""

    def __init__(self, model: LeanModel, library: Library) -> None:
        self.layers = len(model.layers)
        self.heads: Heads = model.sizes.heads
        self._model = model
        self._library = library
        self._packed: structures.NativeModel | None = None
        self._held: list[Panels] = []
        self._floats = empty_floats(0)
        heads, sizes = model.sizes.heads, model.sizes
        self._per_token = 2 * sizes.hidden + (2 * heads.queries + 2 * heads.keys) * heads.dim + sizes.inner

    @torch.inference_mode()
    def logits(self, ids: torch.Tensor, positions: torch.Tensor, cells: Cells) -> torch.Tensor:
        """The logits [sequences, vocabulary] after the newest tokens. Keys and values are stored where `cells` say."""
        tokens, batch = len(ids), cells.batch
        if tokens != batch.tokens or ids.dtype != torch.int64 or not ids.is_contiguous():
            raise RuntimeError(
                f"{batch.tokens} sequences were told of, and {tokens} ids ({ids.dtype}) are to be decoded"
            )
        packed = self.pack()
        if len(self._floats) < tokens * self._per_token:
            self._floats = empty_floats(tokens * self._per_token)
        angles = empty_floats(tokens, 1, 2 * self.heads.dim)
        self._model.angles.into(angles, positions)
        ends, logits = torch.empty_like(ids), empty_floats(tokens, packed.head.outputs)
        batch.ids, batch.angles = ids.data_ptr(), angles.data_ptr()
        self._library.functions.loopwright_step(
            ctypes.byref(packed),
            ctypes.byref(batch),
            *(ctypes.c_void_p(x.data_ptr()) for x in (self._floats, ends, logits)),
            ctypes.c_int(torch.get_num_threads()),
        )
        return logits

    def pack(self) -> structures.NativeModel:
        """Copy the weights, if they are not copied yet. Raises NoRoomError."""
        if self._packed is None:
            needed, free = copied_bytes(self._model) + RESERVE, free_memory()
            if free is not None and free < needed:
                # The system would allow the allocation anyway, and kill a process when the memory is used.
                raise NoRoomError(f"it needs {needed >> 20} MiB, and {free >> 20} MiB are free")
            try:
                self._packed = self._pack()
            except (MemoryError, RuntimeError) as error:
                self._held = []
                if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                    raise
                raise NoRoomError(str(error).partition("\n")[0] or "out of memory") from error
        return self._packed

    def _pack(self) -> structures.NativeModel:
        model, heads, self._held = self._model, self.heads, []
        layers = (structures.NativeLayer * self.layers)(*map(self._layer, model.layers))
        return structures.NativeModel(
            layers=self.layers,
            hidden=model.sizes.hidden,
            heads=heads.queries,
            key_heads=heads.keys,
            dim=heads.dim,
            inner=model.sizes.inner,
            layer=layers,
            last=self._norm(model.norm.norm),
            head=self._product([model.head.layer]),
            table=model.table.data_ptr(),
        )

    def _layer(self, layer: LeanLayer) -> structures.NativeLayer:
        gate, up = layer.gate_and_up.layers
        return structures.NativeLayer(
            before_attention=self._norm(layer.attention_norm.norm),
            projection=self._product(layer.projection.layers),
            query=self._norm(layer.query_norm),
            key=self._norm(layer.key_norm),
            output=self._product(layer.output.layers),
            before_feed_forward=self._norm(layer.feed_forward_norm.norm),
            gate=self._product([gate]),
            up=self._product([up]),
            down=self._product(layer.down.layers),
            scaling=layer.scaling,
            window=layer.window or 0,
        )

    def _norm(self, norm: RmsNorm | None) -> structures.NativeNorm:
        return structures.NativeNorm() if norm is None else structures.NativeNorm(norm.weight.data_ptr(), norm.eps)

    def _product(self, layers: Sequence[Linear]) -> structures.NativeProduct:
        """Layers with the same input, as one product."""
        panels = Panels(layers, self._library)
        self._held.append(panels)
        return panels.structure
