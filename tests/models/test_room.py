"""Rooms share their memory, and each has all its parts apart from each other."""

from __future__ import annotations

import torch

from loopwright.models.room import KEPT, Heads, Room, Rooms

HIDDEN, INNER, HEADS = 24, 40, Heads(queries=4, keys=2, dim=8)


def rooms() -> Rooms:
    return Rooms(HEADS, HIDDEN, INNER, torch.zeros(1))


def parts(room: Room) -> list[torch.Tensor]:
    columns = [room.x, room.normed, room.gate, room.up, room.query, room.key, room.value]
    return [*columns, *room.asked[:2]]


def test_no_part_of_a_room_touches_another() -> None:
    for tokens in (1, 4, 5, 64, 128, 129, KEPT + 1):
        room = rooms().of(tokens)
        for number, part in enumerate(parts(room)):
            part.fill_(number)
        assert all((part == number).all() for number, part in enumerate(parts(room)))
        assert [part.shape[0] for part in parts(room)[:4]] == [HIDDEN, HIDDEN, INNER, INNER]


def test_heads_are_read_token_by_token() -> None:
    for tokens in (3, 7):
        room = rooms().of(tokens)
        room.projected.copy_(torch.arange(room.projected.numel()).view_as(room.projected))
        room.by_token()
        assert torch.equal(room.asked[2][0].transpose(0, 1).flatten(1), room.value.t())
        assert torch.equal(room.key_heads.flatten(1), room.key.t())


def test_rooms_are_made_once_and_share_their_memory() -> None:
    some = rooms()
    large = some.of(64)
    assert some.of(33) is some.of(33)
    assert some.of(64) is large
    assert some.of(33).x.data_ptr() == large.x.data_ptr()
    some.of(65)
    assert some.of(64) is not large
    assert some.of(KEPT + 1) is not some.of(KEPT + 1)
