"""Losses against their formulas, and gradients against finite differences, in float64."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loopwright.learn.losses import importance, ppo_clip

BOUNDED = settings(max_examples=50, deadline=None, derandomize=True)
LOW, HIGH = 0.2, 0.3
clipped_loss = partial(ppo_clip, clip_low=LOW, clip_high=HIGH)
logprob = st.floats(-8, 0)


def tensor(*values: float, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=requires_grad)


def by_the_paper(now: float, old: float, advantage: float) -> float:
    """Schulman et al. 2017, equation 7, with two bounds; as a loss."""
    ratio = math.exp(now) / math.exp(old)
    return -min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)


@BOUNDED
@given(st.lists(st.tuples(logprob, logprob, st.floats(-3, 3)), min_size=1, max_size=8))
def test_ppo_clip_is_the_formula(tokens: list[tuple[float, float, float]]) -> None:
    now, old, advantages = (tensor(*column) for column in zip(*tokens, strict=True))
    expected = [by_the_paper(*token) for token in tokens]
    assert clipped_loss(now, old, advantages).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@BOUNDED
@given(st.lists(st.tuples(logprob, st.floats(-1, 1), st.floats(-3, 3)), min_size=1, max_size=5))
def test_gradients_are_those_of_finite_differences(tokens: list[tuple[float, float, float]]) -> None:
    # Kept off the two corners, where there is no derivative to compare with.
    smooth = [t for t in tokens if all(abs(math.exp(t[1]) - corner) > 1e-3 for corner in (1 - LOW, 1 + HIGH))]
    assume(smooth)
    old, moves, advantages = (tensor(*column) for column in zip(*smooth, strict=True))
    now = (old + moves).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: clipped_loss(x, old, advantages), (now,))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # where a step begins: the plain policy gradient
        (1.2, 1.0, -1.2, -1.2),  # inside the bounds
        (1.5, 1.0, -1.3, 0.0),  # a good token that gained enough: held
        (0.5, 1.0, -0.5, -0.5),  # a good token that lost: pulled back, unbounded
        (0.5, -1.0, 0.8, 0.0),  # a bad token that lost enough: held
        (1.5, -1.0, 1.5, 1.5),  # a bad token that gained: pushed down, unbounded
        (1.5, 0.0, 0.0, 0.0),  # nothing to learn
    ],
)
def test_regions_of_the_clip(ratio: float, advantage: float, loss: float, slope: float) -> None:
    now = tensor(math.log(ratio) - 2, requires_grad=True)
    value = clipped_loss(now, tensor(-2.0), tensor(advantage))
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert now.grad is not None
    assert now.grad.item() == pytest.approx(slope)


@BOUNDED
@given(st.lists(st.tuples(logprob, logprob), min_size=1, max_size=8), st.floats(0.5, 5))
def test_the_importance_weight_is_the_truncated_ratio(tokens: list[tuple[float, float]], cap: float) -> None:
    old, sampled = (tensor(*column) for column in zip(*tokens, strict=True))
    expected = [min(math.exp(o - s), cap) for o, s in tokens]
    assert importance(old, sampled, cap).tolist() == pytest.approx(expected, rel=1e-9)


def test_the_importance_weight_has_no_gradient_and_can_be_switched_off() -> None:
    old = tensor(-1.0, -50.0, requires_grad=True)
    assert not importance(old, tensor(-2.0, -2.0), 2.0).requires_grad
    assert importance(old, tensor(-2.0, -2.0), None).tolist() == [1.0, 1.0]


def test_a_huge_mismatch_is_capped_not_infinite() -> None:
    assert importance(tensor(0.0), tensor(-2000.0), 2.0).tolist() == [2.0]
