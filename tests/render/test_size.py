"""A text never has fewer tokens than is said of it without encoding it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from loopwright.errors import ContextError
from loopwright.render.size import longest_token
from loopwright.render.vocabulary import Vocabulary
from loopwright.testing.tiny import tiny_tokenizer


@cache
def made(normal: str) -> Vocabulary:
    tokenizer = tiny_tokenizer()
    if normal:
        tokenizer.backend_tokenizer.normalizer = getattr(normalizers, normal)()
    return Vocabulary(tokenizer)


@pytest.mark.parametrize("normal", ["", "NFC"])
@given(
    text=st.text(max_size=200)
    | st.sampled_from(["The answer is 19." * 30, "<|endoftext|>" * 40, "α\u0313\u0300\u0345" * 50]),
    before=st.integers(0, 5),
)
def test_a_text_that_fits_is_never_refused(normal: str, text: str, before: int) -> None:
    vocabulary = made(normal)
    tokens = before + len(vocabulary.encode(text))
    vocabulary.check_size(text, tokens, before)


def test_a_text_far_too_long_is_refused() -> None:
    with pytest.raises(ContextError, match="at least") as caught:
        made("").check_size("word " * 100_000, 1000)
    assert caught.value.facts["tokens"] > 1000


def cores() -> list[Any]:
    """Tokenizers that may leave something out, or make one token of anything."""
    blind = Tokenizer(models.BPE(unk_token="?", fuse_unk=True))
    words = tiny_tokenizer().backend_tokenizer
    words.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])
    stripping = tiny_tokenizer().backend_tokenizer
    stripping.normalizer = normalizers.Strip()
    return [None, blind, words, stripping, Tokenizer(models.Unigram([("?", 0.0)], unk_id=0))]


@pytest.mark.parametrize("core", cores())
def test_of_other_tokenizers_nothing_is_said(core: Any) -> None:
    assert longest_token(core, {}) is None


def test_a_token_that_swallows_spaces_may_stand_for_any_number() -> None:
    core = tiny_tokenizer().backend_tokenizer
    assert longest_token(core, {}) is not None
    assert longest_token(core, {7: AddedToken("<|pad|>", lstrip=True)}) is None
