"""Token weights: rollouts come first, and the weights of a mini-batch sum to one (T6)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.weighting import token_weights
from loopwright.types import Aggregate

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)

counts = st.lists(st.integers(0, 50), max_size=10)


def test_by_example() -> None:
    assert token_weights([1, 4, 0], Aggregate.SEQUENCE) == [0.5, 0.125, 0.0]
    assert token_weights([1, 4, 0], Aggregate.TOKEN) == [0.2, 0.2, 0.0]


@pytest.mark.parametrize("aggregate", Aggregate)
@BOUNDED
@given(sampled=counts)
def test_all_tokens_together_weigh_one(aggregate: Aggregate, sampled: list[int]) -> None:
    weights = token_weights(sampled, aggregate)
    total = math.fsum(n * weight for n, weight in zip(sampled, weights, strict=True))
    assert total == pytest.approx(1.0 if any(sampled) else 0.0)


@BOUNDED
@given(sampled=counts)
def test_by_sequence_every_rollout_counts_the_same(sampled: list[int]) -> None:
    weights = token_weights(sampled, Aggregate.SEQUENCE)
    shares = [n * weight for n, weight in zip(sampled, weights, strict=True) if n]
    assert shares == pytest.approx([1 / len(shares)] * len(shares) if shares else [])


@BOUNDED
@given(sampled=counts)
def test_by_token_every_token_counts_the_same(sampled: list[int]) -> None:
    weights = token_weights(sampled, Aggregate.TOKEN)
    assert len({weight for n, weight in zip(sampled, weights, strict=True) if n}) <= 1
