"""Prompts: what is known of their beginnings, and which of them are computed together.

Keys and values outlive their requests, within a budget: those of prompts, and those of answers, which are the history
of an agent's next turn. A new prompt copies the longest beginning that is kept, and only the rest is computed. All that
is kept was computed by the weights that sample now (T4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from loopwright.engines.torch.cache import KVCache, Stretch
from loopwright.engines.torch.prefixes import PrefixTree, common
from loopwright.engines.torch.sequence import Prefix, Sequence

PASS_TOKENS = 4096
"""Tokens of prompts computed in one pass; bounds its memory. A longer prompt stands alone."""

WORTH_COPYING = 16
"""A shorter beginning is computed again: attention takes prompts without a past together, and others one by one."""

WORTH_A_PASS = 256
"""Tokens that another pass must save, since it reads all weights once more."""


class Prompts:
    """The rows of live prompts, and what is kept of those that are gone."""

    def __init__(self, layers: int, cache_tokens: int) -> None:
        self._layers = layers
        self._kept: PrefixTree[Stretch] = PrefixTree(cache_tokens)
        self.rows = KVCache(layers)

    def clear(self) -> None:
        """Lose everything, live rows too."""
        self.rows = KVCache(self._layers)
        self._kept.clear()

    def outdate(self, prefixes: Iterable[Prefix]) -> None:
        """Other weights came: nothing that was computed counts any more, neither what is kept nor live prompts."""
        self._kept.clear()
        for prefix in prefixes:
            prefix.known = 0

    def in_passes(self, prefixes: Iterable[Prefix]) -> Iterator[Seq[Prefix]]:
        """The prompts pass by pass, each with a row that holds its `known` beginning. When the next pass is asked for,
        those before must have been computed: it may begin with what they did."""
        prefixes = list(prefixes)
        for prefix in prefixes:
            # All of them before the first is written to: an arena grows once.
            prefix.row = prefix.row or self.rows.add(len(prefix.ids))
        for prefix in prefixes:
            self._begin(prefix)
        first, others = _in_turns(prefixes) if self._kept.budget else (prefixes, [])
        yield from _by_tokens(first)
        for prefix in others:
            self._begin(prefix)
        yield from _by_tokens(others)

    def keep(self, prefix: Prefix) -> None:
        """Keep a computed prompt, for those that begin like it."""
        if prefix.row is not None:
            self._kept.keep(prefix.ids, prefix.row.copy)

    def keep_answer(self, sequence: Sequence) -> None:
        """Keep what a request has sampled, behind its prompt. Its newest token was not fed to the model."""
        prefix, own = sequence.prefix, sequence.row
        if own is not None:
            if not own.head:  # Else its own row holds the prompt too.
                self.keep(prefix)
            before, ids = len(prefix.ids) - own.head, (*prefix.ids, *sequence.ids[: own.length - own.head])
            self._kept.keep(ids, lambda start, end: own.copy(start - before, end - before))

    def _begin(self, prefix: Prefix) -> None:
        """Copy what is kept of a prompt's beginning; not its last token, whose logits are wanted."""
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
    """Prompts to compute first, and those that will then find more of their beginning than they know now.

    In alphabetical order, the last prompt that goes first is the one that shares most with the next.
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
    """Prompts in order, cut so that each part computes at most PASS_TOKENS."""
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
