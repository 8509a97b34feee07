"""Which beginnings of prompts are kept, and which are forgotten first.

A radix tree. A node stands for a stretch of tokens behind its parent's, and holds what was computed for them: streams
that begin alike keep their common beginning once, and no two children of a node begin with the same token. What is kept
never exceeds the budget. The stretch that was used longest ago goes first, from the ends of streams inwards, because
nothing can be used without what stands before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

Ids = tuple[int, ...]


class Held(Protocol):
    """What was computed for some tokens in a row."""

    def part(self, start: int, end: int) -> Self:
        """A copy of that for tokens `start` to `end`, which does not keep the rest alive."""
        ...


H = TypeVar("H", bound=Held)


@dataclass(slots=True, eq=False)
class _Node(Generic[H]):
    """A stretch. `siblings` is where it is found by its first token."""

    ids: Ids
    held: H
    used: int
    siblings: dict[int, _Node[H]]
    parent: _Node[H] | None
    children: dict[int, _Node[H]] = field(default_factory=dict)


class PrefixTree(Generic[H]):
    """Streams of tokens and what is held for them, at most `budget` tokens in all."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self._beginnings: dict[int, _Node[H]] = {}
        self._ends: set[_Node[H]] = set()
        self._clock = 0

    def longest(self, ids: Ids) -> list[H]:
        """What is held for the longest beginning of `ids` that is kept, stretch by stretch."""
        return [node.held for node in self._path(ids)]

    def keep(self, ids: Ids, read: Callable[[int, int], H]) -> None:
        """Keep as much of `ids` as the budget allows. `read` gives what to hold for the tokens from one place to
        another; it is asked for those only that are not kept yet."""
        ids = ids[: self.budget]
        path = self._path(ids)
        start = sum(len(node.ids) for node in path)
        if start == len(ids):
            return
        # The path was used just now, and with it `ids` fits: only others are forgotten.
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
        """The stretches that `ids` begins with, marked as used. One that goes on differently is split there."""
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
        """Cut a stretch in two; gives the first part, and the node stays the second."""
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
    """How many tokens two streams begin with alike."""
    shortest = min(len(one), len(other))
    if one[:shortest] == other[:shortest]:
        return shortest
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
