"""Turns into chains: one context each, every sampled token trained once (T1, T2, T3, T6, T7)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.chains import chains_of, turns_of
from loopwright.errors import ChainError
from loopwright.types import ChainStart, FinishReason, TokenChain, Turn

token = st.integers(0, 3)


def turn(prompt: tuple[int, ...], ids: tuple[int, ...], number: int) -> Turn:
    """Logprobs and versions name the turn and the position, so that each sampled token can be told apart."""
    logprobs = tuple(-float(number * 100 + i) for i in range(len(ids)))
    return Turn(prompt, ids, logprobs, (number,) * len(ids), FinishReason.STOP)


@st.composite
def rollouts(draw: st.DrawFn) -> list[Turn]:
    """Turns that continue an earlier one, go back into one, or start anew; few token values, so that they collide."""
    turns: list[Turn] = []
    for number in range(draw(st.integers(0, 6))):
        streams = [(*t.prompt_ids, *t.ids) for t in turns] or [()]
        stream = draw(st.sampled_from(streams))
        keep = draw(st.one_of(st.just(len(stream)), st.integers(0, len(stream))))
        prompt = (*stream[:keep], *draw(st.lists(token, min_size=1, max_size=4)))
        turns.append(turn(prompt, tuple(draw(st.lists(token, min_size=1, max_size=4))), number))
    return turns


def sampled(chain: TokenChain) -> list[tuple[int, float]]:
    """(version, logprob) of the chain's trained tokens; unique within a rollout by construction."""
    return list(zip(chain.versions[chain.mask].tolist(), chain.logprobs[chain.mask].tolist(), strict=True))


@given(rollouts())
def test_every_sampled_token_is_trained_once_and_nothing_else_is(turns: list[Turn]) -> None:
    """T2, T7."""
    trained = Counter(mark for chain in chains_of(turns) for mark in sampled(chain))
    assert trained == Counter((t.versions[i], t.logprobs[i]) for t in turns for i in range(len(t.ids)))


@given(rollouts())
def test_every_token_is_trained_on_the_prefix_that_the_engine_saw(turns: list[Turn]) -> None:
    """T1: for each turn there is a chain that starts with its prompt and goes on with what was sampled."""
    by_turn = {int(version): chain for chain in chains_of(turns) for version in chain.versions[chain.mask]}
    for number, made in enumerate(turns):
        chain = by_turn[number]
        first = int((chain.versions == number).argmax())
        assert tuple(chain.ids[:first]) == made.prompt_ids
        assert tuple(chain.ids[first : first + len(made.ids)]) == made.ids
        assert (chain.versions[first : first + len(made.ids)] == number).all()


@given(rollouts())
def test_streams_align_and_context_carries_no_numbers(turns: list[Turn]) -> None:
    """T3."""
    for chain in chains_of(turns):
        assert len(chain.ids) == len(chain.mask) == len(chain.logprobs) == len(chain.versions)
        assert (chain.logprobs[~chain.mask] == 0).all()
        assert (chain.versions[~chain.mask] == -1).all()


@given(rollouts())
def test_a_chain_begins_only_where_no_chain_could_grow(turns: list[Turn]) -> None:
    """T6: as long as each turn extends all that came before, there is one chain; its start says why it began."""
    for count in range(len(turns) + 1):
        chains = chains_of(turns[:count])
        assert [chain.start for chain in chains[:1]] == [ChainStart.FIRST] * min(count, 1)
        assert all(chain.start is not ChainStart.FIRST for chain in chains[1:])
        if count < len(turns):
            prompt = turns[count].prompt_ids
            extends = any(tuple(chain.ids) == prompt[: len(chain.ids)] for chain in chains)
            assert len(chains_of(turns[: count + 1])) == len(chains) + (not extends)


@given(rollouts())
def test_the_turns_of_a_chain_make_the_same_chain_again(turns: list[Turn]) -> None:
    """So an interrupted rollout can go on from what is stored of it."""
    for chain in chains_of(turns):
        if chain.mask[-1:].any():
            (again,) = chains_of(turns_of(chain))
            for name in ("ids", "mask", "logprobs", "versions"):
                assert getattr(again, name).tolist() == getattr(chain, name).tolist()


def test_reasons_for_a_new_chain() -> None:
    first = turn((1, 2), (3,), 0)
    assert [c.start for c in chains_of([first, turn((1, 2, 3, 0), (1,), 1)])] == [ChainStart.FIRST]
    assert [c.start for c in chains_of([first, turn((1, 2), (0,), 1)])] == [ChainStart.FIRST, ChainStart.BRANCH]
    assert [c.start for c in chains_of([first, turn((2,), (0,), 1)])] == [ChainStart.FIRST, ChainStart.REWRITTEN]


def test_streams_of_different_lengths_cannot_be_built() -> None:
    with pytest.raises(ChainError, match="must align"):
        Turn((1,), (2, 3), (-0.5,), (0, 0), FinishReason.STOP)
    with pytest.raises(ChainError, match="must align"):
        TokenChain([1, 2], [True], [-0.5], [0])  # type: ignore[arg-type]


def test_a_missing_logprob_is_refused() -> None:
    with pytest.raises(ChainError, match="no finite logprob"):
        chains_of([Turn((1,), (2,), (float("nan"),), (0,), FinishReason.STOP)])
