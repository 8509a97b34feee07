"""A radix tree of the token streams whose keys and values are cached.

A node stands for some tokens after those of its parent, and holds what was computed for them. Streams with the same
beginning store it once, and no two children of a node begin with the same token. The cached tokens never exceed the
budget. The least recently used node is removed first, beginning with leaves, because a node is useless without its
parents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

Ids = tuple[int, ...]


class Held(Protocol):
    """What was computed for some consecutive tokens."""

    def part(self, start: int, end: int) -> Self:
        """A copy of the part for the tokens `start` to `end`. It does not keep the rest in memory."""
        ...


H = TypeVar("H", bound=Held)


@dataclass(slots=True, eq=False)
class _Node(Generic[H]):
    """A node of the tree. `siblings` is the mapping in which it is found by its first token."""

    ids: Ids
    held: H
    used: int
    siblings: dict[int, _Node[H]]
    parent: _Node[H] | None
    children: dict[int, _Node[H]] = field(default_factory=dict)


class PrefixTree(Generic[H]):
    """Token streams and what is held for them, with at most `budget` tokens in total."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self._beginnings: dict[int, _Node[H]] = {}
        self._ends: set[_Node[H]] = set()
        self._clock = 0

    def longest(self, ids: Ids) -> list[H]:
        """What is held for the longest cached beginning of `ids`, node by node."""
        return [node.held for node in self._path(ids)]

    def keep(self, ids: Ids, read: Callable[[int, int], H]) -> None:
        """Cache as much of `ids` as the budget allows. `read` returns what to hold for the tokens from one position to
        another. It is called only for tokens that are not cached yet."""
        ids = ids[: self.budget]
        path = self._path(ids)
        start = sum(len(node.ids) for node in path)
        if start == len(ids):
            return
        # The path was just used, and `ids` fits together with it, so only other nodes are removed.
        while self.tokens + len(ids) - start > self.budget:
            self._forget_oldest()
        parent = path[-1] if path else None
        siblings = parent.children if parent else self._beginnings
        node = _Node(ids[start:], read(start, len(ids)), self._clock, siblings, parent)
        siblings[ids[start]] = node
        self.tokens += len(node.ids)
        self._ends.add(node)
        if parent:
            self._ends.discard(parent)

    def clear(self) -> None:
        self.tokens = 0
        self._beginnings = {}
        self._ends = set()

    def _path(self, ids: Ids) -> list[_Node[H]]:
        """The nodes that `ids` begins with, marked as used. A node that agrees only in part is split there."""
        self._clock += 1
        path: list[_Node[H]] = []
        here, at = self._beginnings, 0
        while at < len(ids) and (node := here.get(ids[at])) is not None:
            same = common(node.ids, ids[at : at + len(node.ids)])
            if same < len(node.ids):
                node = self._split(node, same)
            node.used = self._clock
            path.append(node)
            here, at = node.children, at + same
        return path

    def _split(self, node: _Node[H], at: int) -> _Node[H]:
        """Split a node in two. Returns the first part; the node itself becomes the second."""
        ids, held = node.ids, node.held
        first = _Node(ids[:at], held.part(0, at), node.used, node.siblings, node.parent)
        node.siblings[ids[0]] = first
        node.ids, node.held = ids[at:], held.part(at, len(ids))
        node.siblings, node.parent = first.children, first
        first.children[node.ids[0]] = node
        return first

    def _forget_oldest(self) -> None:
        node = min(self._ends, key=lambda end: end.used)
        self._ends.remove(node)
        del node.siblings[node.ids[0]]
        self.tokens -= len(node.ids)
        if node.parent and not node.parent.children:
            self._ends.add(node.parent)


def common(one: Ids, other: Ids) -> int:
    """The length of the common beginning of two streams."""
    shortest = min(len(one), len(other))
    if one[:shortest] == other[:shortest]:
        return shortest
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
