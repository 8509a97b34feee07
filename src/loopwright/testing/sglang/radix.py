"""The tree of cached prefixes. Its key are the ids, `extra_key` and `cache_salt` of a request, and not the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.testing.sglang.model import Cell

Key = tuple[str | None, str | None]


@dataclass(slots=True)
class _Node:
    cell: Cell | None = None
    children: dict[int, _Node] = field(default_factory=dict)


class RadixTree:
    """Pages of one token. Nothing is evicted. If it is not `enabled`, it keeps nothing."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self.clear()

    def clear(self) -> None:
        self._roots: dict[Key, _Node] = {}
        self.tokens = 0

    def match(self, key: Key, ids: Sequence[int]) -> list[Cell]:
        """The cells of the longest cached beginning of `ids`."""
        node, cells = self._roots.get(key), list[Cell]()
        for token in ids:
            node = node and node.children.get(token)
            if node is None or node.cell is None:
                break
            cells.append(node.cell)
        return cells

    def insert(self, key: Key, ids: Sequence[int], cells: Sequence[Cell]) -> None:
        """Keep the cells of `ids`. What is there stays as it is."""
        if not self._enabled:
            return
        node = self._roots.setdefault(key, _Node())
        for token, cell in zip(ids, cells, strict=False):
            if token not in node.children:
                node.children[token] = _Node(cell)
                self.tokens += 1
            node = node.children[token]
