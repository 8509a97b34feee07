"""Importance weights against loops over tokens: what is cut, what is masked, and by token or by chain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from token_batches import Token, batch_of, chains_of, token_lists

from loopwright.learn.importance import Importance
from loopwright.learn.losses import TokenBatch
from loopwright.types import ImportanceKind, Level

BOUNDED = settings(max_examples=50)


def raw_weights(tokens: list[Token], level: Level) -> list[float]:
    by_token = [[math.exp(t.old) / math.exp(t.sampled) for t in chain] for chain in chains_of(tokens)]
    if level is Level.SEQUENCE:
        by_token = [[math.prod(weights)] * len(weights) for weights in by_token]
    return [weight for weights in by_token for weight in weights]


@pytest.mark.parametrize("level", Level)
@BOUNDED
@given(tokens=token_lists(), cap=st.floats(1.0, 5.0), floor=st.sampled_from([0.0, 0.5]))
def test_weights_are_bounded_ratios(level: Level, tokens: list[Token], cap: float, floor: float) -> None:
    raw = raw_weights(tokens, level)
    assume(all(abs(weight - bound) > 1e-6 for weight in raw for bound in (cap, floor)))
    batch = batch_of(tokens)
    cut, outside = Importance(ImportanceKind.TRUNCATE, level, cap, floor).weights(batch)
    masked, outside_too = Importance(ImportanceKind.MASK, level, cap, floor).weights(batch)
    assert cut.tolist() == pytest.approx([min(max(weight, floor), cap) for weight in raw], rel=1e-9)
    assert masked.tolist() == pytest.approx([weight if floor <= weight <= cap else 0.0 for weight in raw], rel=1e-9)
    assert outside.tolist() == outside_too.tolist() == [not floor <= weight <= cap for weight in raw]


@pytest.mark.parametrize("kind", ImportanceKind)
@pytest.mark.parametrize("level", Level)
@BOUNDED
@given(tokens=token_lists())
def test_tokens_of_the_trained_policy_weigh_one(kind: ImportanceKind, level: Level, tokens: list[Token]) -> None:
    batch = batch_of([replace(token, sampled=token.old) for token in tokens])
    weights, outside = Importance(kind, level).weights(batch)
    assert weights.tolist() == [1.0] * len(tokens)
    assert not outside.any()


@BOUNDED
@given(tokens=token_lists())
def test_off_means_no_weights(tokens: list[Token]) -> None:
    weights, outside = Importance(ImportanceKind.OFF).weights(batch_of(tokens))
    assert weights.tolist() == [1.0] * len(tokens)
    assert not outside.any()


@pytest.mark.parametrize("kind", ImportanceKind)
def test_weights_have_no_gradient(kind: ImportanceKind) -> None:
    old = torch.tensor([-1.0, -50.0], requires_grad=True)
    batch = TokenBatch(old, old, torch.tensor([-2.0, -2.0]), torch.ones(2), torch.tensor([0, 0]))
    assert not Importance(kind).weights(batch)[0].requires_grad


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize(("kind", "expected"), [(ImportanceKind.TRUNCATE, 2.0), (ImportanceKind.MASK, 0.0)])
def test_a_huge_mismatch_is_bounded_not_infinite(kind: ImportanceKind, expected: float, level: Level) -> None:
    zero = torch.tensor([0.0])
    batch = TokenBatch(zero, zero, torch.tensor([-2000.0]), torch.ones(1), torch.tensor([0]))
    assert Importance(kind, level).weights(batch)[0].tolist() == [expected]
