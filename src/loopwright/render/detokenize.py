"""Ids to text, piece by piece.

The invariant: the pieces add up to the text of all ids, and no piece ends inside a character. Vocabularies of bytes cut
characters apart; what a cut one will be is known only when its last byte is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "\N{REPLACEMENT CHARACTER}"

CONTEXT = 8
"""So many ids are decoded again before new ones: some decoders treat the first token of a text differently."""


class Detokenizer:
    """Reads one completion. `decode` gives the text of ids; `is_byte` knows tokens of one byte each, of which only a
    whole run is text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], is_byte: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_byte = is_byte
        self._context: list[int] = []
        self._pending: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        self._pending.extend(ids)
        if not self._pending or self._is_byte(self._pending[-1]):
            return ""
        text = self._text()
        if text.endswith(UNKNOWN):
            return ""
        self._context = [*self._context, *self._pending][-CONTEXT:]
        self._pending = []
        return text

    def finish(self) -> str:
        """What was held back, with a mark in place of characters that never became whole."""
        text = self._text()
        self._pending = []
        return text

    def _text(self) -> str:
        before = self._decode(self._context)
        return self._decode([*self._context, *self._pending]).removeprefix(before)
