"""What a step computed of each token comes back as it was, rounded to halves; damage is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_values import make_rollout, trained_chain

from loopwright.buffer.token_numbers import decode_numbers, encode_numbers, loss_terms
from loopwright.errors import ChainError
from loopwright.types import Rollout, RolloutKey, TokenChain, TrainedChain, TrainedRollout

NUMBERS = st.floats(-8, 8, width=32)
SMALL = st.floats(-0.125, 0.125, width=32, allow_subnormal=False)


def rollout_of(*chains: TokenChain) -> Rollout:
    whole = make_rollout()
    assert whole.episode is not None
    return replace(whole, episode=replace(whole.episode, chains=chains))


def chain_of(mask: list[bool], logprob: float = -0.5) -> TokenChain:
    sampled = np.array(mask)
    count = len(mask)
    logprobs, versions = np.where(sampled, np.float32(logprob), 0), np.where(sampled, 3, -1)
    return TokenChain(np.arange(count, dtype=np.int32), sampled, logprobs, versions)


def trained(*chains: TrainedChain) -> TrainedRollout:
    return TrainedRollout(RolloutKey("train", 0, 0), 0.5, 0.125, chains)


@given(st.lists(st.tuples(st.booleans(), NUMBERS, SMALL), min_size=1, max_size=40))
def test_the_numbers_of_a_chain_come_back(tokens: list[tuple[bool, float, float]]) -> None:
    positions = np.array([place for place, (is_trained, _, _) in enumerate(tokens) if is_trained], np.int32)
    old = np.array([tokens[place][1] for place in positions], np.float32)
    losses = np.array([tokens[place][2] for place in positions], np.float32)
    one = trained(TrainedChain(1, positions, old, losses))
    chains = (chain_of([True]), chain_of([True] * len(tokens), -0.5))
    (back,) = decode_numbers(encode_numbers(one, rollout_of(*chains)))
    assert back.index == 1
    assert back.positions.tolist() == positions.tolist()
    assert back.mismatch == pytest.approx(old + 0.5, rel=1e-3, abs=1e-4)
    assert back.losses == pytest.approx(losses, rel=1e-3, abs=max(1e-12, 1e-3 * loss_terms(one)))


def test_what_halves_cannot_hold_stays_finite_and_keeps_its_sign() -> None:
    one = trained(trained_chain(0, [0, 1], [-1e9, 0.0], [1e-9, -3e-9]))
    (back,) = decode_numbers(encode_numbers(one, rollout_of(chain_of([True, True]))))
    assert np.isfinite(back.mismatch).all()
    assert back.losses == pytest.approx([1e-9, -3e-9], rel=1e-3)
    assert loss_terms(one) == pytest.approx(4e-9)


def test_a_rollout_without_trained_tokens_has_none() -> None:
    assert decode_numbers(encode_numbers(trained(), make_rollout())) == ()
    (back,) = decode_numbers(encode_numbers(trained(trained_chain(0, [], [], [])), make_rollout()))
    assert len(back.positions) == 0


@pytest.mark.parametrize("harm", [lambda b: b[:-1], lambda b: b[:3], lambda b: bytes([9]) + b[1:], lambda b: b + b"x"])
def test_damage_is_an_error(harm: object) -> None:
    blob = encode_numbers(trained(trained_chain(0, [2], [0.0], [1.0])), make_rollout())
    with pytest.raises(ChainError, match="cannot be read"):
        decode_numbers(harm(blob))  # type: ignore[operator]
