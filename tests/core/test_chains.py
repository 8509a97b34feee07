"""A chain gives back the turns behind it, and impossible chains cannot be built (T3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.chains import turns_of
from loopwright.errors import ChainError
from loopwright.types import FinishReason, TokenChain, Turn

tokens = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(st.lists(st.tuples(tokens, tokens), max_size=5), tokens | st.just([]))
def test_each_run_of_sampled_tokens_is_a_turn_after_all_that_came_before(
    pairs: list[tuple[list[int], list[int]]], rest: list[int]
) -> None:
    """So an interrupted rollout can go on from what is stored of it."""
    ids: list[int] = []
    mask: list[bool] = []
    versions: list[int] = []
    wanted = []
    for number, (context, sampled) in enumerate(pairs):
        prompt = (*ids, *context)
        wanted.append(
            Turn(prompt, tuple(sampled), (-0.5,) * len(sampled), (number,) * len(sampled), FinishReason.ABORT)
        )
        ids += [*context, *sampled]
        mask += [False] * len(context) + [True] * len(sampled)
        versions += [-1] * len(context) + [number] * len(sampled)
    ids, mask, versions = [*ids, *rest], [*mask, *(False for _ in rest)], [*versions, *(-1 for _ in rest)]
    logprobs = [-0.5 if sampled else 0.0 for sampled in mask]
    assert turns_of(TokenChain(ids, mask, logprobs, versions)) == tuple(wanted)  # type: ignore[arg-type]


def test_streams_of_different_lengths_cannot_be_built() -> None:
    with pytest.raises(ChainError, match="must align"):
        Turn((1,), (2, 3), (-0.5,), (0, 0), FinishReason.STOP)
    with pytest.raises(ChainError, match="must align"):
        TokenChain([1, 2], [True], [-0.5], [0])  # type: ignore[arg-type]


def test_a_missing_logprob_is_refused() -> None:
    with pytest.raises(ChainError, match="no finite logprob"):
        TokenChain([1, 2], [False, True], [0.0, float("nan")], [-1, 0])  # type: ignore[arg-type]
