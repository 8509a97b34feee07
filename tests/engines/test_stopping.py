"""Stop strings are found wherever tokens begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.engines.torch.stopping import Stopping
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import GenerateRequest, Sampling

TOKENIZER = tiny_tokenizer()
BYTES = {piece: TOKENIZER.convert_tokens_to_ids(piece) for piece in TOKENIZER.get_vocab()}


def stops_at(sampling: Sampling, ids: Sequence[int], tokenizer: Any = TOKENIZER) -> int | None:
    """How many tokens are sampled when the ids come one by one; None when nothing stops them."""
    stopping, request = Stopping(tokenizer), GenerateRequest("a", (1,), sampling)
    return next((n for n in range(1, len(ids) + 1) if stopping.reached(request, ids[:n])), None)


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


def one_byte_each(text: str) -> list[int]:
    return [token for character in text for token in split_bytes(character)]


def split_bytes(text: str) -> list[int]:
    """The text as tokens of one byte: the finest that a byte-level tokenizer can sample."""
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [BYTES[byte] for piece, _ in pieces for byte in piece]


def test_a_stop_token_stops_even_without_stop_strings() -> None:
    assert stops_at(Sampling(stop_token_ids=(7, 9)), [1, 2, 9, 7]) == 3
    assert stops_at(Sampling(stop_token_ids=(7,)), [1, 2, 3]) is None
    assert stops_at(Sampling(), [1, 2, 3]) is None


def test_a_stop_string_may_begin_and_end_inside_tokens() -> None:
    ids = encode("The answer is 19.")
    assert "answer" in TOKENIZER.decode(ids[1]), "the tokenizer must know a long piece for this test"
    assert stops_at(Sampling(stop=("swer",)), ids) == 2
    crossing = TOKENIZER.decode(ids[1])[-2:] + TOKENIZER.decode(ids[2])[:2]
    assert stops_at(Sampling(stop=(crossing,)), ids) == 3


def test_the_first_of_several_stop_strings_counts() -> None:
    ids = one_byte_each("a\n\nb. c")
    assert stops_at(Sampling(stop=(". ", "\n\n")), ids) == 3
    assert stops_at(Sampling(stop=("zz",)), ids) is None


def test_a_special_token_can_be_a_stop_string() -> None:
    ids = [*encode("19"), TOKENIZER.eos_token_id]
    assert stops_at(Sampling(stop=("<|im_end|>",)), ids) == len(ids)


@pytest.mark.parametrize("stop", ["é", "日本", "👍🏽"])
def test_a_character_split_over_tokens_stops_with_its_last_byte(stop: str) -> None:
    before = one_byte_each("äöü 語")
    ids = [*before, *split_bytes(stop), *one_byte_each("!")]
    assert stops_at(Sampling(stop=(stop,)), ids) == len(before) + len(stop.encode())


@given(st.text("ab é日", min_size=1, max_size=30), st.text("ab é日", min_size=1, max_size=4))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_it_stops_exactly_where_the_text_first_contains_the_string(text: str, stop: str) -> None:
    ids = one_byte_each(text)
    found = text.find(stop)
    expected = None if found < 0 else len(text[: found + len(stop)].encode())
    assert stops_at(Sampling(stop=(stop,)), ids) == expected


@given(st.text("ab é日", min_size=2, max_size=30), st.text("ab é日", min_size=1, max_size=4), st.data())
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_an_interruption_does_not_hide_a_stop_string(text: str, stop: str, data: st.DataObject) -> None:
    """An answer that goes on after an interruption ends where it would have ended without one."""
    ids = one_byte_each(text)
    whole = stops_at(Sampling(stop=(stop,)), ids)
    cut = data.draw(st.integers(0, (whole or len(ids)) - 1))
    stopping, request = (
        Stopping(TOKENIZER),
        GenerateRequest("a", (1, *ids[:cut]), Sampling(stop=(stop,)), sampled_before=cut),
    )
    rest = range(1, len(ids) - cut + 1)
    reached = (n for n in rest if stopping.reached(request, ids[cut : cut + n]))
    assert (cut + n if (n := next(reached, None)) else None) == whole
