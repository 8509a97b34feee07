"""Packing plans: which tokens go into which forward pass, each shared prompt only once.

The chains of a group share their prompt. A packed row holds this prefix once, followed by the rest of each chain, with
positions that restart after the prefix. Attention lets each rest see the prefix and itself. Each token gets the same
numbers as in separate rows. A chain's last token is left out, because nothing is predicted from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from loopwright.types import TokenChain

SAME_PROMPT = 16
"""Chains whose prompts agree in this many first tokens (or are shorter, and equal) are packed together. The exact
length of their common prefix is found afterwards."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Chains behind one prefix. `chains` are indices into the caller's list; `rests` is how many tokens each adds."""

    prefix: int
    chains: tuple[int, ...]
    rests: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that a forward pass over this row computes."""
        return self.prefix + sum(self.rests)


def pack(groups: Sequence[Sequence[int]], chains: Sequence[TokenChain]) -> list[Packed]:
    """One row per group; `groups` lists each group's chains as indices into `chains`.

    Chains of a group that start differently (other tools, a rewritten history) get rows of their own.
    """
    rows: list[Packed] = []
    for members in groups:
        # Sort by length too: attention computes neighbours of equal length in one call.
        alike = sorted(members, key=lambda i: (_start(chains[i]), len(chains[i]), i))
        for _, together in groupby(alike, key=lambda i: _start(chains[i])):
            indices = tuple(together)
            prefix = shared_prefix([chains[i] for i in indices])
            rows.append(Packed(prefix, indices, tuple(len(chains[i]) - 1 - prefix for i in indices)))
    return rows


def shared_prefix(chains: Sequence[TokenChain]) -> int:
    """The length of the prefix that all chains share. It ends before the first sampled token of any chain, because
    sampled tokens belong to their own chain."""
    length = min(min(_context(chain), len(chain) - 1) for chain in chains)
    first = chains[0].ids
    for chain in chains[1:]:
        differing = (chain.ids[:length] != first[:length]).nonzero()[0]
        if len(differing):
            length = int(differing[0])
    return length


def micro_batches(rows: Sequence[Packed], max_tokens: int) -> list[list[Packed]]:
    """Split rows into as few micro-batches as possible, with at most `max_tokens` each, and of about equal size: a
    small one at the end would read all weights for little work. Rows keep their order within a micro-batch.

    A row that is too large is cut between its chains, and each part repeats the prefix. A chain that is too large gets
    a micro-batch of its own.
    """
    parts = [part for row in rows for part in _cut(row, max_tokens)]
    fewest = max(1, math.ceil(sum(part.tokens for part in parts) / max_tokens))
    batches: list[list[int]] = [[] for _ in range(fewest)]
    sizes = [0] * len(batches)
    for index in sorted(range(len(parts)), key=lambda i: -parts[i].tokens):
        smallest = min(range(len(batches)), key=sizes.__getitem__)
        if sizes[smallest] and sizes[smallest] + parts[index].tokens > max_tokens:
            smallest = len(batches)
            batches.append([])
            sizes.append(0)
        batches[smallest].append(index)
        sizes[smallest] += parts[index].tokens
    return [[parts[i] for i in batch] for batch in sorted(map(sorted, batches)) if batch]


def _cut(row: Packed, max_tokens: int) -> list[Packed]:
    parts: list[Packed] = []
    for chain, rest in zip(row.chains, row.rests, strict=True):
        if parts and parts[-1].tokens + rest <= max_tokens:
            last = parts.pop()
            parts.append(Packed(row.prefix, (*last.chains, chain), (*last.rests, rest)))
        else:
            parts.append(Packed(row.prefix, (chain,), (rest,)))
    return parts


def _context(chain: TokenChain) -> int:
    """Tokens before the first sampled one."""
    return int(chain.mask.argmax()) if chain.sampled else len(chain)


def _start(chain: TokenChain) -> bytes:
    return chain.ids[: min(SAME_PROMPT, _context(chain))].tobytes()
