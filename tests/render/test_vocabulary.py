"""Encoding and decoding take a short cut through the tokenizer, and give what the tokenizer gives."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.decoders import ByteLevel

from loopwright.render.bytes import BYTES, ByteTokens
from loopwright.render.vocabulary import Vocabulary
from loopwright.testing.tiny import tiny_tokenizer

BYTE_LEVEL = {byte: character for character, byte in BYTES.items()}


@cache
def made() -> tuple[Any, Vocabulary]:
    tokenizer = tiny_tokenizer()
    return tokenizer, Vocabulary(tokenizer)


def texts() -> st.SearchStrategy[str]:
    marks = [str(token) for token in made()[0].added_tokens_decoder.values()]
    return st.lists(st.text(max_size=12) | st.sampled_from([*marks, " ", "\n\n"]), max_size=6).map("".join)


@settings(max_examples=200)
@given(texts())
def test_the_short_cut_gives_the_same_ids_and_the_same_text(text: str) -> None:
    tokenizer, vocabulary = made()
    assert vocabulary._direct is not None
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert vocabulary._encode(text) == tuple(ids)
    for skip, read in ((True, vocabulary.text(ids)), (False, vocabulary.spelling(ids))):
        assert read == tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@settings(max_examples=200)
@given(st.data())
def test_ids_in_any_order_have_the_text_that_the_tokenizer_gives(data: st.DataObject) -> None:
    """Characters that are cut apart, and ids that nobody knows, too."""
    tokenizer, vocabulary = made()
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 2), max_size=12))
    for skip, read in ((True, vocabulary.text), (False, vocabulary.spelling)):
        assert read(ids) == tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert read.__func__ is ByteTokens.text  # type: ignore[attr-defined]


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=6))
def test_bytes_become_text_as_in_the_tokenizer(pieces: list[bytes]) -> None:
    written = {number: "".join(BYTE_LEVEL[byte] for byte in piece) for number, piece in enumerate(pieces)}
    assert ByteTokens(written.get).text(list(written)) == ByteLevel().decode(list(written.values()))


def test_a_tokenizer_that_was_left_cutting_or_padding_does_neither() -> None:
    tokenizer = tiny_tokenizer()
    vocabulary = Vocabulary(tokenizer)
    whole = vocabulary._encode("one two three")
    tokenizer.backend_tokenizer.enable_truncation(2)
    assert vocabulary._encode("one two three") == whole
    tokenizer.backend_tokenizer.enable_padding(length=99)
    assert vocabulary._encode("one two three") == whole


def test_a_tokenizer_with_ways_of_its_own_is_asked_itself() -> None:
    tokenizer = tiny_tokenizer()

    class Own:
        added_tokens_decoder = tokenizer.added_tokens_decoder
        backend_tokenizer = tokenizer.backend_tokenizer

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [1, *tokenizer.encode(text, add_special_tokens=add_special_tokens)]

    assert Vocabulary(Own())._encode("a")[0] == 1  # type: ignore[arg-type]
