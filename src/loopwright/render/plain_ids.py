"""The ids of a text that spells a control token but must stay text.

The invariant: the ids contain no control token, and decode to the text at any place. First the core of the tokenizer is
tried, without its added tokens. Then the tokenizer itself is tried on pieces of the text, so that no piece spells the
token.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

Encode = Callable[[str], Sequence[int]]

ANCHORS = ("", "a", "\n")
"""Texts in front of which the text is encoded, because some tokenizers add a space at the beginning of a text."""

MOST_TEXTS = 1 << 10


class PlainIds(dict[str, tuple[int, ...]]):
    """The ids of such texts, each computed once. `core` is the tokenizer's inner encoder, or None if it is unknown."""

    def __init__(
        self, encode: Encode, core: Any, control: Container[int], spelling: Callable[[Sequence[int]], str]
    ) -> None:
        super().__init__()
        self._encode = encode
        self._core = core
        self._control = control
        self._spelling = spelling

    def __missing__(self, text: str) -> tuple[int, ...]:
        fitting = (ids for ids in self._candidates(text) if self._fits(ids, text))
        # No text may make a rollout fail. A text that the vocabulary cannot write in any other way is left out.
        ids = tuple(next(fitting, ()))
        if len(self) >= MOST_TEXTS:
            self.clear()
        self[text] = ids
        return ids

    def _candidates(self, text: str) -> Iterator[Sequence[int]]:
        # White space that a token removes may be long, so it is not split.
        first, last = len(text) - len(text.lstrip()) + 1, len(text.rstrip())
        if self._core is not None:
            yield from (_behind(anchor, text, self._without_added_tokens) for anchor in ANCHORS)
        encoders = [self._without_added_tokens] if self._core is not None else []
        for encode in (*encoders, self._encode):
            for anchor in ANCHORS:
                for cut in range(first, last):
                    yield [*_behind(anchor, text[:cut], encode), *_behind(anchor, text[cut:], encode)]
                yield [token for sign in text for token in _behind(anchor, sign, encode)]

    def _fits(self, ids: Sequence[int], text: str) -> bool:
        if not ids or any(token in self._control for token in ids):
            return False
        before = self._encode("a")
        return self._spelling([*before, *ids]) == self._spelling(before) + text

    def _without_added_tokens(self, text: str) -> Sequence[int]:
        core = self._core
        normal = text if core.normalizer is None else core.normalizer.normalize_str(text)
        cut = [(normal, None)] if core.pre_tokenizer is None else core.pre_tokenizer.pre_tokenize_str(normal)
        return [token.id for word, _ in cut for token in core.model.tokenize(word)]


def _behind(anchor: str, text: str, encode: Encode) -> Sequence[int]:
    """The ids of the text when it follows `anchor`. Empty if a token covers parts of both."""
    before, whole = list(encode(anchor)) if anchor else [], list(encode(anchor + text))
    return whole[len(before) :] if whole[: len(before)] == before else []
