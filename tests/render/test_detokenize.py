"""Text is told piece by piece, in time that grows with its length."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from loopwright.render.detokenize import Detokenizer


class Bytes:
    """A decoder of one byte per id, which counts the ids that it is asked for."""

    def __init__(self) -> None:
        self.decoded = 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return bytes(ids).decode("utf-8", errors="replace")


def told(ids: Sequence[int], decode: Bytes) -> list[str]:
    detokenizer = Detokenizer(decode, lambda token: False)
    return [*(detokenizer.feed([token]) for token in ids), detokenizer.finish()]


def work(ids: Sequence[int]) -> int:
    decode = Bytes()
    told(ids, decode)
    return decode.decoded


def test_bytes_that_are_no_text_are_read_in_linear_time() -> None:
    for ids in ([0x80], [0xFF], [0xE2, 0x82], [0xF0, 0x9F, 0x98], [0x61]):
        assert work(ids * 2000) < 2.2 * work(ids * 1000)
        assert work(ids * 1000) < 50 * 1000 * len(ids)


odd = st.sampled_from(
    [0x61, 0x20, 0x80, 0xBF, 0xC2, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xED, 0xA0, 0xEF, 0xBD]
)


@given(st.lists(odd, max_size=120))
def test_pieces_of_any_bytes_add_up_to_their_text(ids: list[int]) -> None:
    assert "".join(told(ids, Bytes())) == bytes(ids).decode("utf-8", errors="replace")


def test_no_piece_ends_inside_a_character() -> None:
    pieces = told("a€\N{SNOWMAN}😀é".encode() * 30, Bytes())
    assert "".join(pieces) == "a€\N{SNOWMAN}😀é" * 30
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
