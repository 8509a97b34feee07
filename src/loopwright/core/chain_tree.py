"""The chains of one rollout as a tree: each hangs on the earlier chain with which it shares the longest beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loopwright.types import TokenChain


class Branch(NamedTuple):
    """Where a chain leaves another one. `parent` is None for a chain that shares nothing with an earlier one."""

    parent: int | None
    shared: int
    """How many first ids are those of the parent."""


def chain_tree(chains: Sequence[TokenChain]) -> tuple[Branch, ...]:
    """One branch for each chain, in their order. Of parents that share equally much, the first is taken."""
    found = []
    for number, chain in enumerate(chains):
        best = Branch(None, 0)
        for earlier in range(number):
            shared = _shared(chain, chains[earlier])
            if shared > best.shared:
                best = Branch(earlier, shared)
        found.append(best)
    return tuple(found)


def _shared(one: TokenChain, other: TokenChain) -> int:
    length = min(len(one), len(other))
    differ = np.flatnonzero(one.ids[:length] != other.ids[:length])
    return int(differ[0]) if len(differ) else length
