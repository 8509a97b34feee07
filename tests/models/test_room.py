"""Rooms share their memory, and each has all its parts apart from each other."""

from __future__ import annotations

import torch

from loopwright.models.prepacked import PAYS
from loopwright.models.room import KEPT, Heads, Room, Rooms

HIDDEN, INNER, HEADS = 24, 40, Heads(queries=4, keys=2, dim=8)


def rooms(prepacked: bool = False) -> Rooms:
    return Rooms(HEADS, HIDDEN, INNER, torch.zeros(1), prepacked=prepacked)


def parts(room: Room) -> list[torch.Tensor]:
    columns = [room.x, room.normed, room.gated, *room.gate_and_up.parts, *room.projected.parts]
    return [*columns, *room.asked[:2]]


def test_no_part_of_a_room_touches_another() -> None:
    for tokens in (1, 4, 5, 64, 128, 129, KEPT + 1):
        room = rooms().of(tokens)
        for number, part in enumerate(parts(room)):
            part.fill_(number)
        assert all((part == number).all() for number, part in enumerate(parts(room)))
        assert [part.shape[0] for part in parts(room)[:5]] == [HIDDEN, HIDDEN, INNER, INNER, INNER]


def test_heads_are_read_token_by_token() -> None:
    for tokens in (3, 7):
        room = rooms().of(tokens)
        whole, (_, key, value) = room.projected
        whole.copy_(torch.arange(whole.numel()).view_as(whole))
        room.by_token()
        assert torch.equal(room.asked[2][0].transpose(0, 1).flatten(1), value.t())
        assert torch.equal(room.key_heads.flatten(1), key.t())


def test_rooms_are_made_once_and_share_their_memory() -> None:
    some = rooms()
    large = some.of(64)
    assert some.of(33) is some.of(33)
    assert some.of(64) is large
    assert some.of(33).x.data_ptr() == large.x.data_ptr()
    some.of(65)
    assert some.of(64) is not large
    assert some.of(KEPT + 1) is not some.of(KEPT + 1)


def test_what_meets_a_prepacked_weight_lies_token_by_token() -> None:
    for tokens in (48, 49, 64, 65):
        assert rooms(prepacked=False).of(tokens).x.is_contiguous()
        assert rooms(prepacked=True).of(tokens).x.t().is_contiguous() == (tokens in PAYS)
