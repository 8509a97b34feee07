"""Encoding and decoding take a short cut through the tokenizer, and give what the tokenizer gives."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.render.vocabulary import Vocabulary
from loopwright.testing.tiny import tiny_tokenizer


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
