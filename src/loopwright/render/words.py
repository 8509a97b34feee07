"""Encoding a text word by word, each word once: texts use few words often, and looking one up is quicker than merging.

The invariant: the ids are those of the whole text. They are where a tokenizer never merges over a single space that has
words on both sides, which is known of byte-level ones that cut texts by the usual patterns, and assumed of no other.
The same holds for what stands beside a mark of the template, and beside a digit where none is merged: a word that was
never seen may consist of parts that were.
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
THREE_DIGITS = CONTRACTED + r"\p{N}{1,3}" + REST
PATTERNS = frozenset({CONTRACTED + r"\p{N}" + REST, THREE_DIGITS})
"""How Qwen's and Llama's tokenizers cut texts. GPT-2's pattern is built into `ByteLevel`."""
NO_SEAMS = re.compile(r"(?!)")
DIGITS = frozenset("0123456789")

Encode = Callable[[str], Sequence[int]]


class Words(dict[str, tuple[int, ...]]):
    """The ids of words that follow a space. A word neither begins nor ends with white space. `seams` finds, in a group,
    what has the same ids wherever it stands, and leaves those of its neighbours as they are."""

    def __init__(self, encode: Encode, seams: re.Pattern[str] = NO_SEAMS) -> None:
        super().__init__()
        self._encode = encode
        self._seams = seams
        self._cut_short = lru_cache(maxsize=MOST_EDGES)(self._cut)

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

    def _edge(self, text: str) -> tuple[int, ...]:
        """How a text begins or ends: with a template's marks, which come again."""
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
            # Those that are in use are soon back.
            self.clear()
        if len(word) <= LONGEST_WORD:
            self[word] = ids
        return ids


def keeps_words_apart(core: Any, added: Mapping[int, Any]) -> bool:
    """Whether the core of a tokenizer, with these added tokens, never merges over a single space between words."""
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
    """What stands for itself inside of words for such a tokenizer: its added tokens, and digits that it never merges.
    Of added tokens that are looked for in normalized text nothing is assumed."""
    if any(token.normalized for token in added.values()):
        return NO_SEAMS
    # Where several begin, the longest is meant.
    found = [re.escape(mark) for mark in sorted(map(str, added.values()), key=len, reverse=True)]
    if _keeps_digits_apart(core):
        # How white space is cut depends on what follows it.
        found.append(r"(?<!\s)[0-9]")
    return re.compile(f"({'|'.join(found)})") if found else NO_SEAMS


def _keeps_digits_apart(core: Any) -> bool:
    """Whether each digit is a token, and in no other. Where numbers are cut by threes, a digit moves its neighbours."""
    if any(step["type"] == "Split" and step["pattern"].get("Regex") == THREE_DIGITS for step in _steps(core)):
        return False
    tokens = core.get_vocab(with_added_tokens=False)
    return tokens.keys() >= DIGITS and all(len(token) == 1 or DIGITS.isdisjoint(token) for token in tokens)


def _steps(core: Any) -> Sequence[Mapping[str, Any]]:
    """How texts are cut, one step after the other."""
    cut = describe_part(core.pre_tokenizer)
    steps: Sequence[Mapping[str, Any]] = cut["pretokenizers"] if cut["type"] == "Sequence" else [cut]
    return steps


def _cuts_between_words(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Digits":
        return True
    known = step["type"] == "Split" and step["pattern"].get("Regex") in PATTERNS
    return known and step["behavior"] == "Isolated" and not step["invert"]


def normalization(core: Any) -> Callable[[str], str] | None:
    """What a tokenizer's core does to the signs of a text before it looks for words. Marks for spaces are no matter."""
    if core is None or core.normalizer is None:
        return None
    steps = json.dumps(describe_part(core.normalizer))
    if any(step in steps for step in ("Prepend", "Replace", "Precompiled")):
        return None
    normalize: Callable[[str], str] = core.normalizer.normalize_str
    return normalize


def describe_part(part: Any) -> dict[str, Any]:
    """A part of a tokenizer, as its file describes it."""
    read: dict[str, Any] = json.loads(part.__getstate__())
    return read
