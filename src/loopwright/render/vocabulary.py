"""A transformers tokenizer as renderers use it: it encodes and decodes text, and adds or cleans up nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Protocol

from loopwright.render.bytes import ByteTokens, byte_level, is_byte_token
from loopwright.render.control import ControlTokens, Spelled, hides_spelling
from loopwright.render.detokenize import UNKNOWN, Detokenizer
from loopwright.render.plain_ids import PlainIds
from loopwright.render.size import longest_token, too_long
from loopwright.render.template import TemplateTokenizer
from loopwright.render.words import Words, describe_part, keeps_words_apart, normalization, seams


class ChatTokenizer(TemplateTokenizer, Protocol):
    """The part of a transformers tokenizer that renderers use."""

    @property
    def eos_token_id(self) -> Any: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...
    def encode(self, text: str, /, *, add_special_tokens: bool) -> Any: ...
    def decode(self, ids: Any, /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any: ...
    def convert_ids_to_tokens(self, ids: Any, /) -> Any: ...


PROBE = "Two  words\n\tof <b>caf\u00e9</b> \N{SNOWMAN}, 3+4=7;\r\n\N{CJK UNIFIED IDEOGRAPH-4E2D} it's "
"""A text on which tokenizers differ."""


class Vocabulary:
    """Encodes and decodes. Control tokens that are in the text were written by the template; what `control` has hidden
    is text. `marks` are control tokens that the template does not write."""

    def __init__(self, tokenizer: ChatTokenizer, marks: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._direct = self._core()
        added = tokenizer.added_tokens_decoder
        by_words = self._direct is not None and keeps_words_apart(self._direct, added)
        self._words = Words(self._encode_directly, seams(self._direct, added)) if by_words else None
        self.text = self._decoder(skip_special_tokens=True)
        """The text of ids."""
        self.spelling = self._decoder(skip_special_tokens=False)
        """The text of ids, with special tokens."""
        template = str(getattr(tokenizer, "chat_template", ""))
        self.control = ControlTokens(added, template, marks, normalization(self._direct))
        self._plain_ids = PlainIds(self._encode_text, self._direct, self.control, self.spelling)
        # Siblings get the same prompt, so it is encoded once.
        self.encode = lru_cache(maxsize=128)(self._encode)
        self._is_byte = lru_cache(maxsize=None)(self._looks_like_a_byte)

    def mark(self, text: str) -> str | int:
        """The id of the added token that is spelled so. The text itself if there is none."""
        return next((token for token, one in self._tokenizer.added_tokens_decoder.items() if str(one) == text), text)

    def marked(self, ids: Sequence[int]) -> tuple[str | int, ...]:
        """The text of ids, and in between the ids of added tokens."""
        added = self._tokenizer.added_tokens_decoder
        runs = ((is_mark, list(run)) for is_mark, run in groupby(ids, key=lambda token: token in added))
        return tuple(part for is_mark, run in runs for part in (run if is_mark else [self.spelling(run)]))

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._piece(int(token)) for token in ids)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.text, self._is_byte)

    def check_size(self, text: str, most: int | None, before: int = 0) -> None:
        """Raise ContextError if the text, plus `before` ids, certainly has more than `most` ids."""
        if most is None or before + len(text) <= most or self._longest is None:
            return
        fewest = before + -(-len(self.control.shown(text)) // self._longest)
        if fewest > most:
            raise too_long(fewest, most)

    @cached_property
    def _longest(self) -> int | None:
        return longest_token(self._direct, self._tokenizer.added_tokens_decoder)

    def _encode(self, text: str) -> tuple[int, ...]:
        if not hides_spelling(text):
            return self._encode_text(text)
        shown, spelled = self.control.spelled(text)
        if not any(one.is_text for one in spelled):
            return self._encode_text(shown)
        ids = self._encode_text(shown)
        control = [token for token in ids if token in self.control]
        if control != [one.token for one in spelled]:
            # The tokenizer has its own rules about where an added token may be.
            return self._encode_in_parts(shown, spelled)
        found = iter(spelled)
        kept: list[int] = []
        for token in ids:
            here = next(found) if token in self.control else None
            kept += self._plain_ids[shown[here.begin : here.end]] if here is not None and here.is_text else [token]
        return tuple(kept)

    def _encode_in_parts(self, text: str, spelled: Sequence[Spelled]) -> tuple[int, ...]:
        ids: list[int] = []
        place = 0
        for one in spelled:
            if one.is_text:
                ids += [*self._encode_text(text[place : one.begin]), *self._plain_ids[text[one.begin : one.end]]]
                place = one.end
        return (*ids, *self._encode_text(text[place:]))

    def _encode_text(self, text: str) -> tuple[int, ...]:
        direct = self._direct
        # Other code that pads or truncates with the same tokenizer leaves these settings in it.
        if direct is None or direct.truncation is not None or direct.padding is not None:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        return tuple(self._encode_directly(text)) if self._words is None else self._words.encode(text)

    def _encode_directly(self, text: str) -> Sequence[int]:
        ids: list[int] = self._direct.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _core(self) -> Any:
        """The tokenizer's inner encoder, if using it directly gives the same result. The code around it takes more time
        than the encoder itself."""
        direct: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if not hasattr(direct, "encode_batch_fast"):
            return None
        marks = "".join(str(token) for token in self._tokenizer.added_tokens_decoder.values())
        probe = f"{PROBE}{marks}{PROBE}"
        ids = direct.encode_batch_fast([probe], add_special_tokens=False)[0].ids
        if ids != list(self._tokenizer.encode(probe, add_special_tokens=False)):
            return None
        same = all(
            direct.decode(ids, skip_special_tokens=skip)
            == self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            for skip in (True, False)
        )
        return direct if same else None

    def _decoder(self, *, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
        direct, added = self._direct, self._tokenizer.added_tokens_decoder
        if direct is None:
            return lambda ids: str(
                self._tokenizer.decode(
                    list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
                )
            )
        if direct.decoder is None or describe_part(direct.decoder)["type"] != "ByteLevel":
            return lambda ids: str(direct.decode(list(ids), skip_special_tokens=skip_special_tokens))
        silent = [token for token, one in added.items() if one.special and skip_special_tokens]
        return ByteTokens(direct.id_to_token, frozenset(silent)).text

    def _piece(self, token: int) -> str:
        piece = self.spelling([token])
        if UNKNOWN not in piece:
            return piece
        # It is a part of a character and no text on its own, so its bytes are shown.
        return byte_level(str(self._tokenizer.convert_ids_to_tokens(token)))

    def _looks_like_a_byte(self, token: int) -> bool:
        return is_byte_token(str(self._tokenizer.convert_ids_to_tokens(token)))
