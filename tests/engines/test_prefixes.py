"""The tree of kept beginnings against a list of all that was ever kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.engines.torch.prefixes import Ids, PrefixTree, common

BUDGET = 12


@dataclass(frozen=True, slots=True)
class Tokens:
    """Holds the tokens themselves, so that what is found shows where it is from."""

    ids: Ids

    def part(self, start: int, end: int) -> Tokens:
        return Tokens(self.ids[start:end])


class Watched:
    """A tree whose answers are plain streams, and the order in which streams were used."""

    def __init__(self, budget: int) -> None:
        self.tree: PrefixTree[Tokens] = PrefixTree(budget)
        self.used: list[Ids] = []

    def keep(self, ids: Ids) -> None:
        found = len(self.find(ids))
        self.used.append(ids[: self.tree.budget])

        def read(start: int, end: int) -> Tokens:
            assert (start, end) == (found, min(len(ids), self.tree.budget)), "only what is not kept yet is copied"
            return Tokens(ids[start:end])

        self.tree.keep(ids, read)

    def find(self, ids: Ids) -> Ids:
        found = tuple(token for held in self.tree.longest(ids) for token in held.ids)
        assert ids[: len(found)] == found
        self.used.append(found)
        return found

    def peek(self, ids: Ids) -> Ids:
        """What is found, by a tree that nobody uses afterwards."""
        here = self.tree._beginnings
        found: Ids = ()
        while rest := ids[len(found) :]:
            node = here.get(rest[0])
            same = common(node.ids, rest) if node else 0
            if node is None or same == 0:
                break
            found += node.held.ids[:same]
            if same < len(node.ids):
                break
            here = node.children
        return found

    def check(self) -> None:
        """Every node is in its place, holds its own tokens, and is counted once."""
        stack: list[tuple[Any, Any]] = [(None, node) for node in self.tree._beginnings.values()]
        assert all(first == node.ids[0] for first, node in self.tree._beginnings.items())
        tokens, ends = 0, set()
        while stack:
            parent, node = stack.pop()
            assert node.parent is parent
            assert node.siblings is (parent.children if parent else self.tree._beginnings)
            assert node.held.ids == node.ids
            assert all(first == child.ids[0] for first, child in node.children.items())
            tokens += len(node.ids)
            ends |= set() if node.children else {node}
            stack += [(node, child) for child in node.children.values()]
        assert tokens == self.tree.tokens <= self.tree.budget
        assert ends == self.tree._ends

    def recently_used(self) -> list[Ids]:
        """The newest streams that fit into the budget together, their common beginnings counted once."""
        newest: list[Ids] = []
        for ids in reversed(self.used):
            if len({stream[:n] for stream in (*newest, ids) for n in range(1, len(stream) + 1)}) > self.tree.budget:
                break
            newest.append(ids)
        return newest


streams = st.lists(st.integers(0, 2), max_size=2 * BUDGET).map(tuple)
short = st.lists(st.integers(0, 2), max_size=5).map(tuple)
events = st.lists(st.tuples(st.sampled_from(["keep", "keep", "find", "clear"]), streams | short), max_size=25)


@given(events)
@settings(max_examples=100, database=None)
def test_what_was_used_last_is_found_and_nothing_else_is_held(events: list[tuple[str, Ids]]) -> None:
    watched = Watched(BUDGET)
    for what, ids in events:
        if what == "clear":
            watched.tree.clear()
            watched.used.clear()
        else:
            watched.keep(ids) if what == "keep" else watched.find(ids)
        watched.check()
        for recent in watched.recently_used():
            assert watched.peek(recent) == recent


@given(st.lists(streams, max_size=20), streams)
@settings(max_examples=100, database=None)
def test_the_longest_common_beginning_is_found_within_a_large_budget(kept: list[Ids], asked: Ids) -> None:
    watched = Watched(10_000)
    for ids in kept:
        watched.keep(ids)
    assert watched.find(asked) == asked[: max((common(ids, asked) for ids in kept), default=0)]
    assert watched.tree.tokens == len({ids[:n] for ids in kept for n in range(1, len(ids) + 1)})
    watched.check()


def test_nothing_is_kept_without_a_budget() -> None:
    watched = Watched(0)
    watched.keep((1, 2, 3))
    assert watched.find((1, 2, 3)) == ()


def test_a_beginning_in_use_outlives_what_was_kept_after_it() -> None:
    watched = Watched(8)
    watched.keep((1, 1, 1, 1))
    watched.keep((2, 2, 2))
    watched.find((1, 1, 5))
    watched.keep((3, 3, 3, 3))
    assert [watched.peek(ids) for ids in ((1, 1, 1, 1), (2, 2, 2), (3, 3, 3, 3))] == [(1, 1), (), (3, 3, 3, 3)]


@pytest.mark.parametrize(("one", "other", "alike"), [((), (1,), 0), ((1, 2), (1, 2, 3), 2), ((1, 2), (1, 3), 1)])
def test_common_beginnings(one: Ids, other: Ids, alike: int) -> None:
    assert common(one, other) == common(other, one) == alike
