"""Encodes a text word by word, and each word once: texts repeat few words often, and a lookup is faster than merging.

The invariant: the ids are those of the whole text. This holds if a tokenizer never merges across a single space between
two words. Byte-level tokenizers that split texts with the usual patterns are known to do so; no others are assumed to.
The same holds next to a mark of the template, and next to a digit if the tokenizer merges no digits. So a new word may
consist of known parts.
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
"""The length in characters of the longest word that is cached. Longer words rarely come again."""
MOST_EDGES = 1 << 12
LONGEST_EDGE = 128

CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
THREE_DIGITS = CONTRACTED + r"\p{N}{1,3}" + REST
PATTERNS = frozenset({CONTRACTED + r"\p{N}" + REST, THREE_DIGITS})
"""The patterns with which Qwen's and Llama's tokenizers split texts. GPT-2's pattern is built into `ByteLevel`."""
NO_SEAMS = re.compile(r"(?!)")
DIGITS = frozenset("0123456789")

Encode = Callable[[str], Sequence[int]]


class Words(dict[str, tuple[int, ...]]):
    """The ids of words that follow a space. A word does not begin or end with white space. `seams` is a pattern with
    one group: it finds parts that have the same ids at any place and do not change the ids of their neighbours."""

    def __init__(self, encode: Encode, seams: re.Pattern[str] = NO_SEAMS) -> None:
        super().__init__()
        self._encode = encode
        self._seams = seams
        self._cut_short = lru_cache(maxsize=MOST_EDGES)(self._cut)

    def encode(self, text: str) -> tuple[int, ...]:
        try:
            return self._joined(text.split(" "))
        except KeyError:
            # Some spaces are not single spaces between words. Then a slower search finds where to split.
            return self._joined(BETWEEN_WORDS.split(text))

    def _joined(self, pieces: Sequence[str]) -> tuple[int, ...]:
        """The ids of pieces with spaces between them. Raises KeyError if a space does not have words on both sides."""
        first, last = pieces[0], pieces[-1]
        if len(pieces) == 1:
            return tuple(self._encode(first))
        if not (first and last) or first[-1].isspace() or last[0].isspace():
            raise KeyError(first, last)
        words = chain.from_iterable(map(self.__getitem__, pieces[1:-1]))
        return (*self._edge(first), *words, *self._edge(f" {last}"))

    def _edge(self, text: str) -> tuple[int, ...]:
        """The ids of the beginning or the end of a text. Short ones are cached: they are often the template's marks,
        which come again."""
        return self._cut_short(text) if len(text) <= LONGEST_EDGE else self._cut(text)

    def _cut(self, text: str) -> tuple[int, ...]:
        """The ids of a text, part by part if it has seams."""
        parts = [part for part in self._seams.split(text) if part]
        if len(parts) == 1:
            return tuple(self._encode(text))
        return tuple(chain.from_iterable(map(self._part, parts)))

    def _part(self, part: str) -> tuple[int, ...]:
        is_word = part[0] == " " and not (part[1:2].isspace() or part[-1].isspace())
        return self[part[1:]] if is_word else self._edge(part)

    def __missing__(self, word: str) -> tuple[int, ...]:
        if not word or word[0].isspace() or word[-1].isspace():
            raise KeyError(word)
        ids = self._cut(f" {word}")
        if len(self) >= MOST_WORDS:
            # Words that are in use will soon be cached again.
            self.clear()
        if len(word) <= LONGEST_WORD:
            self[word] = ids
        return ids


def keeps_words_apart(core: Any, added: Mapping[int, Any]) -> bool:
    """Whether the core of a tokenizer, with these added tokens, never merges across a single space between words."""
    if core.pre_tokenizer is None or getattr(core.model, "dropout", None):
        return False
    if core.normalizer is not None and describe_part(core.normalizer) != {"type": "NFC"}:
        return False
    if any(" " in str(token) or token.lstrip or token.rstrip or token.single_word for token in added.values()):
        return False
    *before, last = _steps(core)
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    return all(map(_cuts_between_words, before)) and (
        last["use_regex"] or any(one["type"] == "Split" for one in before)
    )


def seams(core: Any, added: Mapping[int, Any]) -> re.Pattern[str]:
    """A pattern for parts of words that such a tokenizer always encodes separately: its added tokens, and digits if it
    never merges them. Nothing is assumed about added tokens that are searched for in normalised text."""
    if any(token.normalized for token in added.values()):
        return NO_SEAMS
    # If several begin at one place, the longest counts.
    found = [re.escape(mark) for mark in sorted(map(str, added.values()), key=len, reverse=True)]
    if _keeps_digits_apart(core):
        # How white space is split depends on what follows it.
        found.append(r"(?<!\s)[0-9]")
    return re.compile(f"({'|'.join(found)})") if found else NO_SEAMS


def _keeps_digits_apart(core: Any) -> bool:
    """Whether each digit is a token of its own and part of no other token. If numbers are split into groups of three, a
    digit changes its neighbours."""
    if any(step["type"] == "Split" and step["pattern"].get("Regex") == THREE_DIGITS for step in _steps(core)):
        return False
    tokens = core.get_vocab(with_added_tokens=False)
    return tokens.keys() >= DIGITS and all(len(token) == 1 or DIGITS.isdisjoint(token) for token in tokens)


def _steps(core: Any) -> Sequence[Mapping[str, Any]]:
    """The steps by which texts are split, in order."""
    cut = describe_part(core.pre_tokenizer)
    steps: Sequence[Mapping[str, Any]] = cut["pretokenizers"] if cut["type"] == "Sequence" else [cut]
    return steps


def _cuts_between_words(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Digits":
        return True
    known = step["type"] == "Split" and step["pattern"].get("Regex") in PATTERNS
    return known and step["behavior"] == "Isolated" and not step["invert"]


def normalization(core: Any) -> Callable[[str], str] | None:
    """What a tokenizer's core does to the characters of a text before it splits it into words. Marks for spaces are
    ignored."""
    if core is None or core.normalizer is None:
        return None
    steps = json.dumps(describe_part(core.normalizer))
    if any(step in steps for step in ("Prepend", "Replace", "Precompiled")):
        return None
    normalize: Callable[[str], str] = core.normalizer.normalize_str
    return normalize


def describe_part(part: Any) -> dict[str, Any]:
    """A part of a tokenizer, as its tokenizer.json describes it."""
    read: dict[str, Any] = json.loads(part.__getstate__())
    return read
