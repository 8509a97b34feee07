"""Ids to text, piece by piece.

The invariant: the pieces add up to the text of all ids, and no piece ends inside a character. Byte-level vocabularies
split characters, and a split character is known only when its last byte is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "\N{REPLACEMENT CHARACTER}"

CONTEXT = 8
"""How many earlier ids are decoded again together with new ones, because some decoders treat the first token of a text
differently. Twice this number covers the bytes of all replacement marks that may be held back."""

MOST_HELD = 3
"""A character has at most four bytes. So this many replacement marks at the end of a text may still become a
character."""


class Detokenizer:
    """Reads one completion. `decode` returns the text of ids. `is_byte` recognises tokens of one byte each; only a
    whole run of them is text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], is_byte: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_byte = is_byte
        self._window: list[int] = []
        self._told = 0
        self._held = 0
        self._in_run = False

    def feed(self, ids: Sequence[int]) -> str:
        """The new text that is certain now."""
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
        """The text that was held back, with a replacement mark for each character that stayed incomplete."""
        if not self._held and not self._in_run:
            return ""
        self._held, self._in_run = 0, False
        return self._tell(self._decode(self._window))

    def _tell(self, text: str) -> str:
        """The new part of the window's text, without what is held back."""
        certain = max(self._told, len(text) - self._held)
        news, self._told = text[self._told : certain], certain
        return news

    def _move_on(self) -> None:
        """Move the start of the window if the window has grown. Otherwise each new id would be decoded with all ids
        before it. This is done only when more ids come, because most answers are read in one piece."""
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
