"""The tokenizer that the `renderers` library gets. The library writes control tokens by their ids, and all other text
by `encode`, which never turns hidden text into a control token (T9)."""

from __future__ import annotations

from typing import Any

from loopwright.render.control import hides_spelling
from loopwright.render.vocabulary import ChatTokenizer, Vocabulary


class LibraryTokenizer:
    """A tokenizer that records which marks a family asks for while the family is made."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks: set[str] = set()
        self._vocabulary: Vocabulary | None = None

    def hiding(self) -> Vocabulary:
        """The vocabulary that encodes from now on. It knows the family's marks."""
        self._vocabulary = Vocabulary(self._tokenizer, self._marks)
        return self._vocabulary

    def encode(self, text: str, *others: Any, add_special_tokens: bool = True, **more: Any) -> list[int]:
        if self._vocabulary is not None and not add_special_tokens and not others and not more:
            return list(self._vocabulary.encode(text))
        self._marks.add(text)
        encoded: list[int] = self._tokenizer.encode(text, *others, add_special_tokens=add_special_tokens, **more)
        return encoded

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if self._vocabulary is None and isinstance(tokens, str):
            self._marks.add(tokens)
        return self._tokenizer.convert_tokens_to_ids(tokens)  # type: ignore[attr-defined]

    def __call__(self, text: str, **more: Any) -> Any:
        """Ids with their offsets. The library uses the offsets to find out which message a token belongs to. Nothing
        here uses that, so the offsets of hidden texts are not real."""
        if self._vocabulary is None or not hides_spelling(text):
            return self._tokenizer(text, **more)  # type: ignore[operator]
        ids = self._vocabulary.encode(text)
        return {"input_ids": list(ids), "offset_mapping": [(0, 1)] * len(ids)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
