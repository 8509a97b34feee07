"""Describes where the keys and values of a decode step are, in the form that decode.c needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from loopwright.models.native.structures import NativeBatch

Int64s = npt.NDArray[np.int64]
Layers = Sequence[Sequence[torch.Tensor]]
"""One tensor for each layer and arena."""


STRIDE = 32
"""The largest number of keys that are processed at a time. A row's capacity is a multiple of it."""


class Cells:
    """`cells` [sequences, 6] holds for each sequence: the arena of its own keys, its row there, and how many keys it
    has, with the newest one; then arena, row and length of the prompt that it shares with others, or -1. Sequences that
    share a prompt should be neighbours, for speed. `keys` are [rows, heads, dim, capacity], `values` are
    [rows, heads, capacity, dim]."""

    def __init__(self, cells: Sequence[Sequence[int]], keys: Layers, values: Layers) -> None:
        self._cells: Int64s = np.array(cells, np.int64)
        capacities: Int64s = np.array([arena.shape[3] for arena in keys[0]], np.int64)
        if (capacities % STRIDE).any():
            raise RuntimeError(f"rows must have room for multiples of {STRIDE} keys, not for {capacities.tolist()}")
        pointers = [np.array([[x.data_ptr() for x in layer] for layer in side], np.uint64) for side in (keys, values)]
        # The structure holds pointers, so the tensors must live as long as it does.
        self._held = keys, values, capacities, pointers
        self.batch = NativeBatch(
            tokens=len(cells),
            arenas=len(capacities),
            cells=self._cells.ctypes.data,
            capacities=capacities.ctypes.data,
            keys=pointers[0].ctypes.data,
            values=pointers[1].ctypes.data,
        )

    def advance(self) -> None:
        """Count one more key for each sequence."""
        self._cells[:, 2] += 1
