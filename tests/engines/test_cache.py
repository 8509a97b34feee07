"""Arenas stay dense, and a row keeps its content wherever it moves."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from loopwright.engines.torch.cache import SMALLEST_ROW, KVCache, Row

LAYERS, HEADS, DIM = 2, 2, 3


class CacheLife(RuleBasedStateMachine):
    """Rows that are added, written, outgrown and removed in any order, beside a plain copy of what they hold."""

    rows = Bundle("rows")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(LAYERS)
        self.held: dict[Row, list[tuple[torch.Tensor, torch.Tensor]] | None] = {}
        self.written = 0

    @rule(target=rows, tokens=st.integers(1, 5 * SMALLEST_ROW))
    def add(self, tokens: int) -> Row:
        row = self.cache.add(tokens)
        assert row.arena.capacity >= tokens
        assert row.arena.capacity < 2 * max(tokens, SMALLEST_ROW)
        self.held[row] = None
        return row

    @rule(row=rows, share=st.floats(0, 1))
    def write(self, row: Row, share: float) -> None:
        """Fill some of the row, as a forward pass does layer by layer."""
        row.length = max(1, int(share * row.arena.capacity))
        content = []
        for layer in range(LAYERS):
            self.written += 1
            fresh = torch.full((1, HEADS, row.length, DIM), float(self.written))
            fresh += torch.arange(row.length)[:, None] / 1000
            row.write(layer, fresh[0], -fresh[0])
            content.append((fresh[0], -fresh[0]))
        self.held[row] = content

    @rule(target=rows, row=consumes(rows).filter(lambda row: row.length > 0), tokens=st.integers(1, 5 * SMALLEST_ROW))
    def reserve(self, row: Row, tokens: int) -> Row:
        content, length, fits = self.held.pop(row), row.length, tokens <= row.arena.capacity
        moved = self.cache.reserve(row, tokens)
        assert (moved is row) == fits
        assert moved.arena.capacity >= tokens
        assert moved.length == length
        self.held[moved] = content
        return moved

    @rule(row=consumes(rows))
    def remove(self, row: Row) -> None:
        row.arena.remove(row)
        del self.held[row]

    @invariant()
    def arenas_are_dense(self) -> None:
        arenas = self.cache.arenas
        assert {row for arena in arenas for row in arena.rows} == self.held.keys()
        assert [arena.capacity for arena in arenas] == sorted({row.arena.capacity for row in self.held})
        for arena in arenas:
            assert [row.index for row in arena.rows] == list(range(len(arena.rows)))
            assert all(row.arena is arena for row in arena.rows)

    @invariant()
    def rows_keep_their_content(self) -> None:
        for row, content in self.held.items():
            for layer, (key, value) in enumerate(content or ()):
                held = row.read(layer)
                assert held is not None
                assert torch.equal(held[0], key)
                assert torch.equal(held[1], value)


CacheLife.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestCacheLife = CacheLife.TestCase


def test_unused_cells_are_zero_so_that_a_weight_of_zero_never_meets_a_nan() -> None:
    cache = KVCache(1)
    rows = [cache.add(8) for _ in range(3)]
    keys, values = rows[0].arena.layer(0, torch.ones(1, HEADS, 1, DIM), torch.ones(1, HEADS, 1, DIM))
    assert keys.shape == (3, HEADS, DIM, SMALLEST_ROW)
    assert values.shape == (3, HEADS, SMALLEST_ROW, DIM)
    assert not keys.any()
    assert not values.any()
