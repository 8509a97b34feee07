"""Token weights: rollouts come first (T6)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.weighting import token_weights
from loopwright.types import Aggregate

BOUNDED = settings(max_examples=30)

counts = st.lists(st.integers(0, 50), max_size=10)


def test_by_example() -> None:
    assert token_weights([1, 4, 0], Aggregate.SEQUENCE, 8) == [0.5, 0.125, 0.0]
    assert token_weights([1, 4, 0], Aggregate.TOKEN, 8) == [0.2, 0.2, 0.0]
    assert token_weights([1, 4, 0], Aggregate.CONSTANT, 8) == [1 / 16, 1 / 16, 0.0]


@pytest.mark.parametrize("aggregate", [Aggregate.SEQUENCE, Aggregate.TOKEN])
@BOUNDED
@given(sampled=counts)
def test_all_tokens_together_weigh_one(aggregate: Aggregate, sampled: list[int]) -> None:
    weights = token_weights(sampled, aggregate, 1)
    total = math.fsum(n * weight for n, weight in zip(sampled, weights, strict=True))
    assert total == pytest.approx(1.0 if any(sampled) else 0.0)


@BOUNDED
@given(sampled=counts)
def test_by_sequence_every_rollout_counts_the_same(sampled: list[int]) -> None:
    weights = token_weights(sampled, Aggregate.SEQUENCE, 1)
    shares = [n * weight for n, weight in zip(sampled, weights, strict=True) if n]
    assert shares == pytest.approx([1 / len(shares)] * len(shares) if shares else [])


@BOUNDED
@given(sampled=counts)
def test_by_token_every_token_counts_the_same(sampled: list[int]) -> None:
    weights = token_weights(sampled, Aggregate.TOKEN, 1)
    assert len({weight for n, weight in zip(sampled, weights, strict=True) if n}) <= 1


@BOUNDED
@given(sampled=counts, length=st.integers(1, 100))
def test_a_constant_length_makes_a_full_rollout_weigh_its_share(sampled: list[int], length: int) -> None:
    """A rollout of that length has the weight it would have by sequence; shorter ones have less."""
    rollouts = sum(1 for n in sampled if n)
    for n, weight in zip(sampled, token_weights(sampled, Aggregate.CONSTANT, length), strict=True):
        assert n * weight == pytest.approx(n / length / max(1, rollouts))
