"""Impossible token streams cannot be built, and those that are built cannot change (T2 to T5)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.errors import ChainError
from loopwright.types import ChainStart, FinishReason, TokenChain, Turn

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)
STREAMS = ("ids", "mask", "logprobs", "versions")


def streams(**changes: Any) -> dict[str, Any]:
    """A context of two tokens and three sampled ones, the last by newer weights."""
    whole = {
        "ids": [5, 6, 7, 8, 9],
        "mask": [False, False, True, True, True],
        "logprobs": [0.0, 0.0, -0.5, -1.0, -2.0],
        "versions": [-1, -1, 3, 3, 4],
    }
    return whole | changes


def test_a_sound_chain() -> None:
    chain = TokenChain(**streams(start=ChainStart.BRANCH))
    assert len(chain) == 5
    assert chain.sampled == 3
    assert chain.oldest_version == 3
    assert chain.start is ChainStart.BRANCH
    assert [getattr(chain, name).dtype for name in STREAMS] == [np.int32, np.bool_, np.float32, np.int32]


def test_a_chain_of_context_alone_has_no_version() -> None:
    chain = TokenChain(**{name: values[:2] for name, values in streams().items()})
    assert chain.sampled == 0
    assert chain.oldest_version is None


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_misaligned_streams_are_refused(name: str, change: str) -> None:
    """T3."""
    values = streams()[name]
    values = values[:-1] if change == "shorter" else [*values, values[-1]]
    with pytest.raises(ChainError, match=rf"must align.*'{name}': {len(values)}"):
        TokenChain(**streams(**{name: values}))


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_logprob_that_is_no_number_is_refused(logprob: float) -> None:
    """T5: a missing logprob is an error, never a zero."""
    with pytest.raises(ChainError, match="no finite logprob"):
        TokenChain(**streams(logprobs=[0.0, 0.0, -0.5, logprob, -2.0]))


@pytest.mark.parametrize(
    "versions",
    [[-1, -1, -1, 3, 4], [-1, 0, 3, 3, 4], [-1, -1, 3, -2, 4], [-2, -1, 3, 3, 4]],
    ids=["sampled without", "context with", "sampled below", "context below"],
)
def test_a_version_is_where_a_token_was_sampled_and_nowhere_else(versions: list[int]) -> None:
    """T4."""
    with pytest.raises(ChainError, match="versions must be"):
        TokenChain(**streams(versions=versions))


@pytest.mark.parametrize("name", STREAMS)
def test_nested_streams_are_refused(name: str) -> None:
    with pytest.raises(ChainError, match="one-dimensional"):
        TokenChain(**streams(**{name: [streams()[name]]}))


@pytest.mark.parametrize("name", STREAMS)
def test_a_chain_cannot_be_changed_and_does_not_follow_its_source(name: str) -> None:
    source = np.array(streams()[name])
    chain = TokenChain(**streams(**{name: source}))
    kept = getattr(chain, name).copy()
    source[:] = source[::-1].copy()
    np.testing.assert_array_equal(getattr(chain, name), kept)
    with pytest.raises(ValueError, match="read-only"):
        getattr(chain, name)[0] = 1
    with pytest.raises(FrozenInstanceError):
        setattr(chain, name, kept)


@BOUNDED
@given(
    st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.floats(-9, 0, width=32), st.integers(0, 9)), max_size=9)
)
def test_what_goes_in_is_what_is_read(tokens: list[tuple[int, bool, float, int]]) -> None:
    chain = TokenChain(
        np.array([token for token, _, _, _ in tokens]),
        np.array([sampled for _, sampled, _, _ in tokens], dtype=bool),
        np.array([logprob if sampled else 0.0 for _, sampled, logprob, _ in tokens]),
        np.array([version if sampled else -1 for _, sampled, _, version in tokens]),
    )
    trained = [(token, logprob, version) for token, sampled, logprob, version in tokens if sampled]
    assert chain.sampled == len(trained)
    assert chain.oldest_version == min((version for _, _, version in trained), default=None)
    read = zip(chain.ids[chain.mask], chain.logprobs[chain.mask], chain.versions[chain.mask], strict=True)
    assert [(int(i), float(p), int(v)) for i, p, v in read] == trained


@pytest.mark.parametrize("short", ["ids", "logprobs", "versions"])
def test_a_turn_needs_a_logprob_and_a_version_for_each_id(short: str) -> None:
    whole: dict[str, Any] = {"ids": (7, 8), "logprobs": (-0.5, -1.0), "versions": (0, 0)}
    assert Turn((1, 2), **whole, finish=FinishReason.STOP).ids == (7, 8)
    with pytest.raises(ChainError, match="must align"):
        Turn((1, 2), **(whole | {short: whole[short][:1]}), finish=FinishReason.STOP)
