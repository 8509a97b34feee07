"""Prompts: which of their beginnings are cached, and which prompts are computed together.

Keys and values are kept after their requests have ended, within a budget: those of prompts, and those of answers, which
are the history of an agent's next turn. A new prompt copies the longest cached beginning, and only the rest is
computed. Everything in the cache was computed by the present weights (T4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from loopwright.engines.torch.cache import KVCache, Stretch
from loopwright.engines.torch.prefixes import PrefixTree, common
from loopwright.engines.torch.sequence import Prefix, Sequence

PASS_TOKENS = 4096
"""How many tokens of prompts are computed in one pass, to limit its memory. A longer prompt gets a pass of its own."""

WORTH_COPYING = 16
"""A shorter cached beginning is not used, because attention computes new prompts together but others one by one."""

WORTH_A_PASS = 256
"""How many tokens another pass must save to be worthwhile, because it reads all weights once more."""


class Prompts:
    """The rows of live prompts, and the cache of earlier ones."""

    def __init__(self, layers: int, cache_tokens: int) -> None:
        self._layers = layers
        self._kept: PrefixTree[Stretch] = PrefixTree(cache_tokens)
        self.rows = KVCache(layers)

    def clear(self) -> None:
        """Remove everything, also the rows of live prompts."""
        self.rows = KVCache(self._layers)
        self._kept.clear()

    def outdate(self, prefixes: Iterable[Prefix]) -> None:
        """New weights were loaded: the cache and the computed live prompts become invalid."""
        self._kept.clear()
        for prefix in prefixes:
            prefix.known = 0

    def in_passes(self, prefixes: Iterable[Prefix]) -> Iterator[Seq[Prefix]]:
        """The prompts pass by pass, each with a row that holds its `known` beginning. Before the next pass is taken,
        the earlier ones must have been computed, because their results may be its beginnings."""
        prefixes = list(prefixes)
        for prefix in prefixes:
            # Add all rows before the first write, so that an arena grows only once.
            prefix.row = prefix.row or self.rows.add(len(prefix.ids))
        for prefix in prefixes:
            self._begin(prefix)
        first, others = _in_turns(prefixes) if self._kept.budget else (prefixes, [])
        yield from _by_tokens(first)
        for prefix in others:
            self._begin(prefix)
        yield from _by_tokens(others)

    def keep(self, prefix: Prefix) -> None:
        """Cache a computed prompt, for prompts that begin like it."""
        if prefix.row is not None:
            self._kept.keep(prefix.ids, prefix.row.copy)

    def keep_answer(self, sequence: Sequence) -> None:
        """Cache what a request has sampled, after its prompt. Its newest token was not fed to the model."""
        prefix, own = sequence.prefix, sequence.row
        if own is not None:
            if not own.head:  # otherwise its own row holds the prompt too
                self.keep(prefix)
            before, ids = len(prefix.ids) - own.head, (*prefix.ids, *sequence.ids[: own.length - own.head])
            self._kept.keep(ids, lambda start, end: own.copy(start - before, end - before))

    def _begin(self, prefix: Prefix) -> None:
        """Copy the cached beginning of a prompt, without the prompt's last token, because its logits are needed."""
        stretches = self._kept.longest(prefix.ids[:-1])
        known = sum(stretch.tokens for stretch in stretches)
        if prefix.row is None or known < max(WORTH_COPYING, prefix.known + 1):
            return
        end = 0
        for stretch in stretches:
            if end + stretch.tokens > prefix.known:
                prefix.row.paste(stretch, end)
            end += stretch.tokens
        prefix.known = known


def _in_turns(prefixes: Seq[Prefix]) -> tuple[Seq[Prefix], Seq[Prefix]]:
    """Split the prompts into those to compute first and those that can then copy a longer beginning than now.

    They are sorted by their tokens: then, of the prompts that go first, the last one shares most with the next prompt.
    """
    first: list[Prefix] = []
    others: list[Prefix] = []
    saved = 0
    for prefix in sorted(prefixes, key=lambda prefix: prefix.ids):
        shared = common(first[-1].ids, prefix.ids[:-1]) if first else 0
        if shared > max(prefix.known, WORTH_COPYING - 1):
            others.append(prefix)
            saved += shared - prefix.known
        else:
            first.append(prefix)
    return (first, others) if saved >= WORTH_A_PASS else (prefixes, [])


def _by_tokens(prefixes: Iterable[Prefix]) -> Iterator[Seq[Prefix]]:
    """The prompts in order, split so that each part computes at most PASS_TOKENS."""
    part: list[Prefix] = []
    size = 0
    for prefix in prefixes:
        new = len(prefix.ids) - prefix.known
        if part and size + new > PASS_TOKENS:
            yield part
            part, size = [], 0
        part.append(prefix)
        size += new
    if part:
        yield part
