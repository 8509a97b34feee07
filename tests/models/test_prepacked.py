"""Prepacked weights give what the layers give, for those models alone that gain by them and have the memory."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from loopwright.models import prepacked
from loopwright.models.linear import Linear
from loopwright.models.prepacked import PAYS, ROWS, SMALLEST, Prepacked, is_worth_it

FEATURES = 40


def layer(features: int, bias: bool) -> Linear:
    made = nn.Linear(FEATURES, features, bias=bias)
    return Linear(made.weight, made.bias)


@pytest.mark.parametrize("biases", [(False,), (True,), (False, False), (True, False, True)])
@torch.no_grad()
def test_layers_become_one_product(biases: tuple[bool, ...]) -> None:
    layers = [layer(8 * (number + 1), bias) for number, bias in enumerate(biases)]
    packed = Prepacked(layers)
    for rows in PAYS:
        # A slice of something larger and a transposed one: nobody promises that rows lie side by side.
        for x in (
            torch.randn(rows, FEATURES),
            torch.randn(rows, 2 * FEATURES)[:, ::2],
            torch.randn(FEATURES, rows).t(),
        ):
            expected = torch.cat([one(x) for one in layers], dim=1)
            assert torch.allclose(packed(x), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_weights_and_biases_are_read_again_when_they_have_changed() -> None:
    one = layer(8, bias=True)
    packed, x = Prepacked([one]), torch.randn(ROWS, FEATURES)
    packed(x)
    one.weight.mul_(2)
    one.bias.add_(1)  # type: ignore[union-attr]
    packed.outdate()
    assert torch.allclose(packed(x), one(x), rtol=1e-5, atol=1e-5)


def test_small_models_and_other_devices_and_numbers_are_left_alone() -> None:
    large = torch.empty(SMALLEST)
    assert is_worth_it([large, torch.empty(3)])
    assert not is_worth_it([torch.empty(SMALLEST - 1)])
    assert not is_worth_it([large, torch.empty(3, dtype=torch.bfloat16)])
    assert not is_worth_it([large, torch.empty(3, device="meta")])


def test_a_model_that_would_fill_the_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.empty(SMALLEST)]
    pages = 4 * SMALLEST // os.sysconf("SC_PAGE_SIZE") * int(1 / prepacked.SHARE_OF_MEMORY)
    sizes = {"SC_PAGE_SIZE": os.sysconf("SC_PAGE_SIZE"), "SC_PHYS_PAGES": pages}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert is_worth_it(weights)
    sizes["SC_PHYS_PAGES"] -= 1
    assert not is_worth_it(weights)


def test_without_mkl_nothing_is_prepacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not is_worth_it([torch.empty(SMALLEST)])
