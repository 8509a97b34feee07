"""A linear layer computes the same for few rows and for many."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopwright.models.linear import FEW, Linear, replace_linears


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, FEW.start, 17, FEW.stop - 1, FEW.stop])
def test_any_number_of_rows(rows: int, bias: bool) -> None:
    theirs = nn.Linear(6, 10, bias=bias)
    model = nn.Sequential(theirs)
    replace_linears(model)
    assert isinstance(model[0], Linear)
    x = torch.randn(1, rows, 6)
    with torch.no_grad():
        mine = model(x)
    assert mine.is_contiguous()
    assert torch.allclose(mine, theirs(x), atol=1e-6)


def test_training_takes_the_usual_way() -> None:
    theirs = nn.Linear(6, 10)
    model = nn.Sequential(theirs)
    replace_linears(model)
    x = torch.randn(17, 6, requires_grad=True)
    model(x).sum().backward()
    assert theirs.weight.grad is not None
    assert torch.allclose(theirs.weight.grad, x.detach().sum(0).expand(10, 6), atol=1e-5)


def test_layers_of_another_kind_are_left_alone() -> None:
    class Special(nn.Linear):
        pass

    model = nn.Sequential(Special(2, 2))
    replace_linears(model)
    assert isinstance(model[0], Special)
