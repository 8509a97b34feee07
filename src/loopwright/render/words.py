"""Encoding a text word by word, each word once: texts use few words often, and looking one up is quicker than merging.

The invariant: the ids are those of the whole text. They are where a tokenizer never merges over a single space that has
words on both sides, which is known of byte-level ones that cut texts by the usual patterns, and assumed of no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

BETWEEN_WORDS = re.compile(r" (?<=\S )(?=\S)")

MOST_WORDS = 1 << 16
LONGEST_WORD = 64
"""In characters. What is longer is no word that comes again."""

CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = frozenset(CONTRACTED + numbers + REST for numbers in (r"\p{N}", r"\p{N}{1,3}"))
"""How Qwen's and Llama's tokenizers cut texts. GPT-2's pattern is built into `ByteLevel`."""

Encode = Callable[[str], Sequence[int]]


class Words(dict[str, tuple[int, ...]]):
    """The ids of words that follow a space."""

    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self._encode = encode

    def encode(self, text: str) -> tuple[int, ...]:
        first, *others = BETWEEN_WORDS.split(text)
        return (*self._encode(first), *chain.from_iterable(map(self.__getitem__, others)))

    def __missing__(self, word: str) -> tuple[int, ...]:
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
    if core.normalizer is not None and _described(core.normalizer) != {"type": "NFC"}:
        return False
    if any(" " in str(token) or token.lstrip or token.rstrip or token.single_word for token in added.values()):
        return False
    described = _described(core.pre_tokenizer)
    *before, last = described["pretokenizers"] if described["type"] == "Sequence" else [described]
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


def _described(part: Any) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(part.__getstate__())
    return described
