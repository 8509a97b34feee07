"""Ids to text, piece by piece.

The invariant: the pieces add up to the text of all ids, and no piece ends inside a character. Vocabularies of bytes cut
characters apart; what a cut one will be is known only when its last byte is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "\N{REPLACEMENT CHARACTER}"

CONTEXT = 8
"""So many ids are decoded again before new ones: some decoders treat the first token of a text differently. Twice as
many hold the bytes of all marks that may be held back."""

MOST_HELD = 3
"""A character has four bytes at most: so many marks at the end of a text may still become one."""


class Detokenizer:
    """Reads one completion. `decode` gives the text of ids; `is_byte` knows tokens of one byte each, of which only a
    whole run is text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], is_byte: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_byte = is_byte
        self._window: list[int] = []
        self._told = 0
        self._held = 0
        self._in_run = False

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        if not ids:
            return ""
        self._move_on()
        self._window.extend(ids)
        self._in_run = self._is_byte(self._window[-1])
        if self._in_run:
            return ""
        text = self._decode(self._window)
        self._held = _unknown_at_end(text)
        return self._tell(text)

    def finish(self) -> str:
        """What was held back, with a mark in place of characters that never became whole."""
        if not self._held and not self._in_run:
            return ""
        self._held, self._in_run = 0, False
        return self._tell(self._decode(self._window))

    def _tell(self, text: str) -> str:
        """What is new in the text of the window, up to what is held back."""
        certain = max(self._told, len(text) - self._held)
        news, self._told = text[self._told : certain], certain
        return news

    def _move_on(self) -> None:
        """Begin the window later if it has grown, or each new id would be decoded with all before it. Not before more
        ids come: most answers are read in one piece."""
        if self._in_run or len(self._window) <= 4 * CONTEXT:
            return
        window = self._window[-2 * CONTEXT if self._held else -CONTEXT :]
        text = self._decode(window)
        if text.endswith(UNKNOWN * self._held):
            self._window, self._told = window, len(text) - self._held


def _unknown_at_end(text: str) -> int:
    if not text.endswith(UNKNOWN):
        return 0
    return next(held for held in range(MOST_HELD, 0, -1) if text.endswith(UNKNOWN * held))
