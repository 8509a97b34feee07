"""Encoding a text word by word, each word once: texts use few words often, and looking one up is quicker than merging.

The invariant: the ids are those of the whole text. They are where a tokenizer never merges over a single space that has
words on both sides, which is known of byte-level ones that cut texts by the usual patterns, and assumed of no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

BETWEEN_WORDS = re.compile(r" (?<=\S )(?=\S)")

MOST_WORDS = 1 << 16
LONGEST_WORD = 64
"""In characters. What is longer is no word that comes again."""
MOST_EDGES = 1 << 12
LONGEST_EDGE = 128

CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = frozenset(CONTRACTED + numbers + REST for numbers in (r"\p{N}", r"\p{N}{1,3}"))
"""How Qwen's and Llama's tokenizers cut texts. GPT-2's pattern is built into `ByteLevel`."""

Encode = Callable[[str], Sequence[int]]


class Words(dict[str, tuple[int, ...]]):
    """The ids of words that follow a space. A word neither begins nor ends with white space."""

    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self._encode = encode
        self._encode_short = lru_cache(maxsize=MOST_EDGES)(encode)

    def encode(self, text: str) -> tuple[int, ...]:
        try:
            return self._joined(text.split(" "))
        except KeyError:
            # Some space is not a single one between words. Where to cut is looked for then, which takes longer.
            return self._joined(BETWEEN_WORDS.split(text))

    def _joined(self, pieces: Sequence[str]) -> tuple[int, ...]:
        """The ids of pieces with spaces between them. Raises KeyError where a space has no words on both sides."""
        first, last = pieces[0], pieces[-1]
        if len(pieces) == 1:
            return tuple(self._encode(first))
        if not (first and last) or first[-1].isspace() or last[0].isspace():
            raise KeyError(first, last)
        words = chain.from_iterable(map(self.__getitem__, pieces[1:-1]))
        return (*self._edge(first), *words, *self._edge(f" {last}"))

    def _edge(self, text: str) -> Sequence[int]:
        """How a text begins or ends: with a template's marks, which come again."""
        return self._encode_short(text) if len(text) <= LONGEST_EDGE else self._encode(text)

    def __missing__(self, word: str) -> tuple[int, ...]:
        if not word or word[0].isspace() or word[-1].isspace():
            raise KeyError(word)
        ids = tuple(self._encode(f" {word}"))
        if len(self) >= MOST_WORDS:
            # Those that are in use are soon back.
            self.clear()
        if len(word) <= LONGEST_WORD:
            self[word] = ids
        return ids


def keeps_words_apart(core: Any, added: Mapping[int, Any]) -> bool:
    """Whether the core of a tokenizer, with these added tokens, never merges over a single space between words."""
    if core.pre_tokenizer is None or getattr(core.model, "dropout", None):
        return False
    if core.normalizer is not None and described(core.normalizer) != {"type": "NFC"}:
        return False
    if any(" " in str(token) or token.lstrip or token.rstrip or token.single_word for token in added.values()):
        return False
    cut = described(core.pre_tokenizer)
    *before, last = cut["pretokenizers"] if cut["type"] == "Sequence" else [cut]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    return all(map(_cuts_between_words, before)) and (
        last["use_regex"] or any(one["type"] == "Split" for one in before)
    )


def _cuts_between_words(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Digits":
        return True
    known = step["type"] == "Split" and step["pattern"].get("Regex") in PATTERNS
    return known and step["behavior"] == "Isolated" and not step["invert"]


def described(part: Any) -> dict[str, Any]:
    """A part of a tokenizer, as its file describes it."""
    read: dict[str, Any] = json.loads(part.__getstate__())
    return read
