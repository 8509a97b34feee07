"""The text of token ids, for showing tokens. It needs neither torch nor transformers, only the package tokenizers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from loopwright.errors import RunError
from loopwright.render.bytes import byte_level

UNKNOWN = "\ufffd"


class TokenText:
    """Texts of one tokenizer. `why_not` says why there are none."""

    def __init__(self, tokenizer: Any = None, why_not: str = "") -> None:
        self._tokenizer = tokenizer
        self.why_not = why_not
        self._of = lru_cache(maxsize=None)(self._text)

    @classmethod
    def read(cls, file: Path) -> Self:
        if not file.is_file():
            return cls(why_not="the run has stored no tokenizer.json")
        if importlib.util.find_spec("tokenizers") is None:
            return cls(why_not="the package tokenizers is missing: pip install 'loopwright[ui]'")
        import tokenizers

        try:
            return cls(tokenizers.Tokenizer.from_file(str(file)))
        # The package raises nothing more special.
        except Exception as error:
            raise RunError(
                f"{file.name} cannot be read: {error}", remedy="restore it from the model's folder"
            ) from error

    @property
    def is_known(self) -> bool:
        return self._tokenizer is not None

    def of(self, ids: Iterable[int]) -> list[str | None]:
        """The text of each id; None where there is none."""
        return [self._of(token) for token in ids]

    def _text(self, token: int) -> str | None:
        if self._tokenizer is None or self._tokenizer.id_to_token(token) is None:
            return None
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        if UNKNOWN in text or not text:
            # A part of a character, or a token that a decoder drops at the start of a text.
            return byte_level(str(self._tokenizer.id_to_token(token)))
        return text
