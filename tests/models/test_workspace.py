"""Workspaces share their memory, and each has all its parts apart from each other."""

from __future__ import annotations

import torch

from loopwright.models.product import FEATURES_FIRST
from loopwright.models.workspace import KEPT, Heads, Sizes, Workspace, Workspaces

HIDDEN, INNER = 24, 40
SIZES = Sizes(Heads(queries=4, keys=2, dim=8), HIDDEN, INNER)


def workspaces() -> Workspaces:
    return Workspaces(SIZES, torch.zeros(1))


def parts(space: Workspace) -> list[torch.Tensor]:
    columns = [space.x, space.normed, space.gate, space.up, *space.projected]
    return [*columns, *space.asked[:2]]


def test_no_part_of_a_workspace_touches_another() -> None:
    for tokens in (1, 4, 5, 64, 128, 129, KEPT + 1):
        space = workspaces().of(tokens)
        for number, part in enumerate(parts(space)):
            part.fill_(number)
        assert all((part == number).all() for number, part in enumerate(parts(space)))
        assert [part.shape[0] for part in parts(space)[:4]] == [HIDDEN, HIDDEN, INNER, INNER]


def test_heads_are_read_token_by_token() -> None:
    for tokens in (3, 7):
        space = workspaces().of(tokens)
        _, key, value = space.projected
        for part in (key, value):
            part.copy_(torch.arange(part.numel()).view_as(part))
        space.by_token()
        assert torch.equal(space.asked[2][0].transpose(0, 1).flatten(1), value.t())
        assert torch.equal(space.key_heads.flatten(1), key.t())


def test_workspaces_are_made_once_and_share_their_memory() -> None:
    some = workspaces()
    large = some.of(64)
    assert some.of(33) is some.of(33)
    assert some.of(64) is large
    assert some.of(33).x.data_ptr() == large.x.data_ptr()
    some.of(65)
    assert some.of(64) is not large
    assert some.of(KEPT + 1) is not some.of(KEPT + 1)


def test_columns_lie_as_their_forward_wants_them() -> None:
    for tokens in (4, 5, 64, 128, 129):
        assert workspaces().of(tokens).x.is_contiguous() == (tokens in FEATURES_FIRST)
