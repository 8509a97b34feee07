"""The KV cache: arenas of rows of equal size, without gaps.

A row holds the keys and values of consecutive tokens (a shared prompt, or what one request has sampled). Rows with the
same capacity are in one arena, so a decode step attends over all of them in one batched product. When a row is freed,
the last row takes its place, so no step computes over gaps. A row that becomes too long for its arena moves to the next
larger one. So nothing is concatenated in a step.

Keys are stored with the tokens as the last dimension, because the product with few queries is fast then: stored like
values, it takes six times as long (64 rows of 39 tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SMALLEST_ROW = 32
"""The smallest capacity; larger ones double. So less than half of the memory is unused, and a run uses only a few
arenas. Native steps need multiples of this."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The keys and values of some tokens outside of the arenas: [heads, tokens, dim] of both, for each layer."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @property
    def tokens(self) -> int:
        return self.layers[0][0].shape[1]

    def part(self, start: int, end: int) -> Stretch:
        return Stretch(tuple((key[:, start:end].clone(), value[:, start:end].clone()) for key, value in self.layers))


class Row:
    """A handle of one row. Its arena updates `index` when rows move. If the row continues a copied prompt, its first
    `head` tokens are the prompt's."""

    __slots__ = ("arena", "head", "index", "length")

    def __init__(self, arena: Arena, index: int) -> None:
        self.arena = arena
        self.index = index
        self.length = 0
        self.head = 0

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, start: int = 0) -> None:
        """Put [heads, tokens, dim] into the row, from the token `start` on."""
        keys, values = self.arena.layer(layer, key, value)
        end = start + key.shape[1]
        keys[self.index, :, :, start:end] = key.transpose(1, 2)
        values[self.index, :, start:end] = value

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Views of what the row holds, [heads, tokens, dim]. None if nothing was written yet."""
        keys, values = self.arena.keys[layer], self.arena.values[layer]
        if keys is None or values is None or self.index >= len(keys):
            return None
        return keys[self.index, :, :, : self.length].transpose(1, 2), values[self.index, :, : self.length]

    def held(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for a row that was written to."""
        if (held := self.read(layer)) is None:
            raise RuntimeError("a row is read before anything was written to it")
        return held

    def copy(self, start: int, end: int) -> Stretch:
        """A copy of what the row holds for the tokens `start` to `end`."""
        return Stretch(tuple(self.held(layer) for layer in range(len(self.arena.keys)))).part(start, end)

    def paste(self, stretch: Stretch, start: int) -> None:
        """Copy the stretch into the row, from the token `start` on."""
        for layer, (key, value) in enumerate(stretch.layers):
            self.write(layer, key, value, start)
        self.length = start + stretch.tokens


class Arena:
    """Rows of one capacity, for every layer. Keys are [rows, KV heads, dim, capacity], values are [rows, KV heads,
    capacity, dim]. The tensors are made at the first write."""

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
            for layer in range(len(self.keys)):
                if (held := last.read(layer)) is not None:
                    row.write(layer, *held)
            last.index = row.index
            self.rows[last.index] = last

    def begin(self, rows: Sequence[Row], prompt: Row) -> None:
        """Copy the prompt into each of these neighbouring rows, which hold nothing else yet."""
        span = slice(rows[0].index, rows[-1].index + 1)
        for layer in range(len(self.keys)):
            key, value = prompt.held(layer)
            keys, values = self.layer(layer, key, value)
            keys[span, :, :, : prompt.length] = key.transpose(1, 2)
            values[span, :, : prompt.length] = value
        for row in rows:
            row.head = row.length = prompt.length

    def layer(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's tensors, with room for all rows. `key` and `value` [..., heads, tokens, dim] define their
        shape."""
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None or len(keys) < len(self.rows):
            keys = self._grown(keys, key, (key.shape[-1], self.capacity))
            values = self._grown(values, value, (self.capacity, value.shape[-1]))
            self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def _grown(self, tensor: torch.Tensor | None, like: torch.Tensor, row: tuple[int, int]) -> torch.Tensor:
        have = 0 if tensor is None else len(tensor)
        # Filled with zeros: unused cells are multiplied by a weight of 0, and 0 times NaN would be NaN.
        grown = like.new_zeros((max(len(self.rows), 2 * have), like.shape[-3], *row))
        if tensor is not None:
            grown[:have] = tensor
        return grown


class KVCache:
    """All arenas of one kind, by capacity."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._arenas: dict[int, Arena] = {}

    @property
    def arenas(self) -> list[Arena]:
        """The arenas that have rows, the smallest capacity first."""
        return [self._arenas[capacity] for capacity in sorted(self._arenas) if self._arenas[capacity].rows]

    @property
    def layout(self) -> tuple[int, ...]:
        """A value that changes whenever a row is added, removed or moved."""
        return tuple(arena.changes for arena in self._arenas.values())

    def add(self, tokens: int) -> Row:
        """A new row with room for `tokens`."""
        capacity = SMALLEST_ROW
        while capacity < tokens:
            capacity *= 2
        return self._arenas.setdefault(capacity, Arena(capacity, self._layers)).add()

    def reserve(self, row: Row, tokens: int) -> Row:
        """The row itself if `tokens` fit into it, otherwise a larger one with the same content."""
        if tokens <= row.arena.capacity:
            return row
        larger = self.add(tokens)
        larger.length, larger.head = row.length, row.head
        for layer in range(self._layers):
            if (held := row.read(layer)) is not None:
                larger.write(layer, *held)
        row.arena.remove(row)
        return larger
