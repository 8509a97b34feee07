"""The KV cache: arenas of equal rows, always dense.

A row holds the keys and values of one stretch of tokens (a shared prompt, or what one request has sampled). Rows of
one capacity lie in one arena, so that a decode step attends over all of them in one batched product. A freed row is
filled by the last one, so no step computes over holes, and a row that outgrows its arena moves to the next larger
one: nothing is ever concatenated per step.
"""

from __future__ import annotations

import torch

SMALLEST_ROW = 32
"""Rows double from here. Memory waste stays below 2x, and a run uses only a few arenas."""


class Row:
    """A handle on one row; its arena keeps `index` true while rows move."""

    __slots__ = ("arena", "index", "length")

    def __init__(self, arena: Arena, index: int) -> None:
        self.arena = arena
        self.index = index
        self.length = 0


class Arena:
    """Rows of one capacity, for every layer. Tensors are [rows, KV heads, capacity, dim], made at the first write."""

    def __init__(self, capacity: int, layers: int) -> None:
        self.capacity = capacity
        self.changes = 0
        self.rows: list[Row] = []
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.values: list[torch.Tensor | None] = [None] * layers

    def add(self) -> Row:
        row = Row(self, len(self.rows))
        self.changes += 1
        self.rows.append(row)
        return row

    def remove(self, row: Row) -> None:
        last = self.rows.pop()
        self.changes += 1
        if last is not row:
            # A row that was never written may lie outside the tensors: then there is nothing to move.
            for tensor in (t for t in self._tensors() if last.index < len(t)):
                tensor[row.index, :, : last.length] = tensor[last.index, :, : last.length]
            last.index = row.index
            self.rows[last.index] = last

    def layer(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's tensors, with room for all rows; `key` and `value` [..., heads, tokens, dim] give their shape."""
        keys = self._fitted(self.keys[layer], key)
        values = self._fitted(self.values[layer], value)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def _fitted(self, tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        have = 0 if tensor is None else tensor.shape[0]
        if tensor is not None and have >= len(self.rows):
            return tensor
        rows = max(len(self.rows), 2 * have)
        # Zeros, not empty: unused cells are multiplied by a weight of 0, which must not meet a NaN.
        grown = like.new_zeros((rows, like.shape[-3], self.capacity, like.shape[-1]))
        if tensor is not None:
            grown[:have] = tensor
        return grown

    def _tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor in (*self.keys, *self.values) if tensor is not None]


class KVCache:
    """All arenas of one kind, by capacity."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._arenas: dict[int, Arena] = {}

    @property
    def arenas(self) -> list[Arena]:
        """Those with rows in them, smallest capacity first."""
        return [self._arenas[capacity] for capacity in sorted(self._arenas) if self._arenas[capacity].rows]

    @property
    def layout(self) -> tuple[int, ...]:
        """Another one whenever a row has come, gone or moved."""
        return tuple(arena.changes for arena in self._arenas.values())

    def add(self, tokens: int) -> Row:
        """A new row with room for `tokens`."""
        capacity = SMALLEST_ROW
        while capacity < tokens:
            capacity *= 2
        return self._arenas.setdefault(capacity, Arena(capacity, self._layers)).add()

    def reserve(self, row: Row, tokens: int) -> Row:
        """The row itself when `tokens` fit, else a larger one with the same content."""
        if tokens <= row.arena.capacity:
            return row
        larger = self.add(tokens)
        larger.length = row.length
        old, new = row.arena, larger.arena
        for layer, (key, value) in enumerate(zip(old.keys, old.values, strict=True)):
            if key is not None and value is not None:
                for target, source in zip(new.layer(layer, key, value), (key, value), strict=True):
                    target[larger.index, :, : row.length] = source[row.index, :, : row.length]
        old.remove(row)
        return larger
