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
        self._window: list[int] = []
        self._told = ""
        self._holds = False

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        if not ids:
            return ""
        self._move_on()
        self._window.extend(ids)
        self._holds = True
        if self._is_byte(self._window[-1]):
            return ""
        text = self._decode(self._window)
        if text.endswith(UNKNOWN):
            return ""
        return self._tell(text)

    def finish(self) -> str:
        """What was held back, with a mark in place of characters that never became whole."""
        return self._tell(self._decode(self._window)) if self._holds else ""

    def _tell(self, text: str) -> str:
        """What is new in the text of the window."""
        news, self._told = text[len(self._told) :], text
        self._holds = False
        return news

    def _move_on(self) -> None:
        """Begin the window later if it has grown. Not before more ids come: most answers are read in one piece."""
        if not self._holds and len(self._window) > 4 * CONTEXT:
            self._window = self._window[-CONTEXT:]
            self._told = self._decode(self._window)
