"""A text that is encoded word by word has the ids of the whole text; tokenizers of which this is not known are left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from loopwright.render import words
from loopwright.render.words import NO_SEAMS, PATTERNS, Words, keeps_words_apart, seams

TEXT = "it's a word, and  two\n words: 12 345\t\tcaf\u00e9 e\u0301 \u4e2d\u6587 'll x" * 3
NO_NUMBERS = TEXT.replace("12 345", "\u0663\u0664\u0665\u0666 \t\t\n\n\n \u0663\u0664")
MARK = "<|end|>"
LONGER_MARK = "<|end|>1s"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
CUT_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CUTS = {
    "gpt2": BYTES,
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    **{
        f"split-{number}": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), CUT_BYTES])
        for number, pattern in enumerate(sorted(PATTERNS))
    },
}
THREES = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words.THREE_DIGITS), "isolated"), CUT_BYTES])
NOT_KNOWN = {
    "a prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "no cuts": CUT_BYTES,
    "another pattern": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("x"), "isolated"), CUT_BYTES]),
    "no bytes": pre_tokenizers.Metaspace(),
}


def core(cut: Any, normalizer: Any = None, *, text: str = TEXT, **flags: bool) -> Tokenizer:
    """A tokenizer that merges as much as it may."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.normalizer = cut, normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([text] * 4, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    made.add_special_tokens([AddedToken(mark, **{"normalized": False, **flags}) for mark in (MARK, LONGER_MARK)])
    return made


@cache
def known(name: str, text: str = TEXT) -> tuple[Tokenizer, Words]:
    made = core(CUTS[name], normalizers.NFC(), text=text)
    return made, Words(lambda text: whole(made, text), seams(made, made.get_added_tokens_decoder()))


def whole(made: Tokenizer, text: str) -> Sequence[int]:
    return made.encode(text, add_special_tokens=False).ids


def texts() -> st.SearchStrategy[str]:
    pieces = [
        MARK,
        LONGER_MARK,
        " ",
        "  ",
        "\n",
        " \n",
        "\t",
        "\u00a0",
        "\u2003",
        "\x1c",
        "\u0301",
        "'s",
        " a",
        "a",
        "1",
        "234",
        "?!",
    ]
    return st.lists(st.sampled_from(pieces) | st.text(max_size=4), max_size=10).map("".join)


@pytest.mark.parametrize("learned", [TEXT, NO_NUMBERS], ids=["numbers", "digits"])
@pytest.mark.parametrize("name", CUTS)
@settings(max_examples=150)
@given(text=texts())
def test_word_by_word_is_the_whole_text(name: str, learned: str, text: str) -> None:
    made, by_words = known(name, learned)
    for _ in range(2):
        assert by_words.encode(text) == tuple(whole(made, text))


@pytest.mark.parametrize("name", CUTS)
def test_the_usual_tokenizers_keep_words_apart(name: str) -> None:
    made, by_words = known(name)
    assert keeps_words_apart(made, made.get_added_tokens_decoder())
    assert by_words.encode(TEXT) == tuple(whole(made, TEXT))
    assert len(by_words) > 5


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_nothing_is_assumed_of_others(name: str) -> None:
    assert not keeps_words_apart(core(NOT_KNOWN[name]), {})


def test_tokens_that_reach_over_spaces_and_chance_are_left_to_the_tokenizer() -> None:
    for flag in ("lstrip", "rstrip", "single_word"):
        flags: dict[str, Any] = {flag: True}
        made = core(BYTES, **flags)
        assert not keeps_words_apart(made, made.get_added_tokens_decoder())
    assert not keeps_words_apart(core(BYTES), {0: AddedToken("two words")})
    assert not keeps_words_apart(core(BYTES, normalizers.Lowercase()), {})
    chancy = core(BYTES)
    chancy.model.dropout = 0.1
    assert not keeps_words_apart(chancy, {})


def test_a_word_is_encoded_once_and_no_more_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_WORDS", 3)
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    kept = Words(encode)
    assert kept.encode("a bb bb a") == (1, 3, 3, 2)
    assert asked == ["a", " bb", " a"]
    kept.encode(f"a {'long' * 20} c d e last")
    assert set(kept) == {"e"}


def test_a_new_word_of_known_parts_needs_no_tokenizer() -> None:
    made, asked = core(BYTES, text=NO_NUMBERS), list[str]()

    def encode(text: str) -> Sequence[int]:
        asked.append(text)
        return whole(made, text)

    by_words = Words(encode, seams(made, made.get_added_tokens_decoder()))
    by_words.encode(f"a 00123456789: 2 3 5 word word{MARK}\n")
    asked.clear()
    for text in (f"a 31: word{MARK}\n", f"a 2024: word word{MARK}\n", f"a word{MARK}1: 5{MARK}\n"):
        assert by_words.encode(text) == tuple(whole(made, text))
    assert not asked


def test_seams_are_assumed_of_no_numbers_that_merge_and_of_no_marks_in_normalized_text() -> None:
    assert seams(core(BYTES), {}) is NO_SEAMS
    assert seams(core(THREES, text=NO_NUMBERS), {}) is NO_SEAMS
    made = core(BYTES, text=NO_NUMBERS, normalized=True)
    assert seams(made, made.get_added_tokens_decoder()) is NO_SEAMS


def test_a_digit_is_no_seam_behind_white_space() -> None:
    made = core(BYTES, text="\n\n\n\n a")
    by_words = Words(lambda text: whole(made, text), seams(made, made.get_added_tokens_decoder()))
    text = "a b\n\n\n\n1 c"
    assert by_words.encode(text) == tuple(whole(made, text))
