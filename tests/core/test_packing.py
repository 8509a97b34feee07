"""Packing plans: every chain comes back whole, and a shared prompt is computed once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.packing import SAME_PROMPT, Packed, micro_batches, pack, shared_prefix
from loopwright.types import TokenChain

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)

Segment = tuple[list[int], bool]


def chain_of(*segments: Segment) -> TokenChain:
    """A chain of (tokens, were they sampled) segments."""
    ids = [token for tokens, _ in segments for token in tokens]
    mask = np.array([sampled for tokens, sampled in segments for _ in tokens])
    return TokenChain(np.array(ids), mask, np.where(mask, -1.0, 0.0), np.where(mask, 3, -1))


@st.composite
def grouped_chains(draw: st.DrawFn) -> tuple[list[list[int]], list[TokenChain]]:
    """Groups of chains behind a few prompts, in which two token values make accidental agreement common."""
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5)
    groups: list[list[int]] = []
    chains: list[TokenChain] = []
    for _ in range(draw(st.integers(1, 3))):
        size = st.sampled_from([1, 2, SAME_PROMPT - 1, SAME_PROMPT, SAME_PROMPT + 1, 2 * SAME_PROMPT])
        prompts = [[draw(st.integers(0, 1))] * draw(size) for _ in range(draw(st.integers(1, 2)))]
        members = []
        for _ in range(draw(st.integers(1, 4))):
            more = draw(st.lists(st.tuples(tokens, st.booleans()), max_size=3))
            segments = [(draw(st.sampled_from(prompts)), False), *more, (draw(tokens), True)]
            if draw(st.booleans()):
                segments.append((draw(tokens), False))
            members.append(len(chains))
            chains.append(chain_of(*segments))
        groups.append(members)
    return groups, chains


@BOUNDED
@given(grouped_chains())
def test_unpacking_gives_back_every_chain(case: tuple[list[list[int]], list[TokenChain]]) -> None:
    """All tokens but the last, from which nothing is predicted; and each chain in exactly one row."""
    groups, chains = case
    rows = pack(groups, chains)
    assert sorted(i for row in rows for i in row.chains) == list(range(len(chains)))
    for row in rows:
        packed = [*chains[row.chains[0]].ids[: row.prefix]]
        for index, rest in zip(row.chains, row.rests, strict=True):
            assert rest >= 0
            packed += [*chains[index].ids[row.prefix : row.prefix + rest]]
        assert len(packed) == row.tokens
        start = row.prefix
        for index, rest in zip(row.chains, row.rests, strict=True):
            assert packed[: row.prefix] + packed[start : start + rest] == [*chains[index].ids[:-1]]
            start += rest


@BOUNDED
@given(grouped_chains())
def test_rows_hold_chains_of_one_group(case: tuple[list[list[int]], list[TokenChain]]) -> None:
    groups, chains = case
    group_of = {index: number for number, members in enumerate(groups) for index in members}
    for row in pack(groups, chains):
        assert len({group_of[index] for index in row.chains}) == 1


@BOUNDED
@given(grouped_chains())
def test_a_prefix_holds_only_context_and_could_not_be_longer(
    case: tuple[list[list[int]], list[TokenChain]],
) -> None:
    """A sampled token belongs to its chain; short of that, what all chains share is computed once."""
    groups, chains = case
    for row in pack(groups, chains):
        together = [chains[i] for i in row.chains]
        assert not any(chain.mask[: row.prefix].any() for chain in together)
        ended = any(chain.mask[row.prefix] or len(chain) == row.prefix + 1 for chain in together)
        parted = len({int(chain.ids[row.prefix]) for chain in together}) > 1
        assert ended or parted


@BOUNDED
@given(grouped_chains(), st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_members_of_one_prompt_share_a_row_however_short_it_is(
    case: tuple[list[list[int]], list[TokenChain]], prompt: list[int]
) -> None:
    answers = [chain.ids.tolist() for chain in case[1]]
    chains = [chain_of((prompt, False), (answer, True)) for answer in answers]
    (row,) = pack([list(range(len(chains)))], chains)
    by_length = sorted(range(len(chains)), key=lambda i: len(chains[i]))
    assert row == Packed(len(prompt), tuple(by_length), tuple(len(answers[i]) - 1 for i in by_length))


def test_chains_that_start_differently_get_rows_of_their_own() -> None:
    ours, theirs = [1] * 20, [2] * 20
    chains = [chain_of((prompt, False), ([5, 6], True)) for prompt in (ours, theirs, ours)]
    assert sorted(row.chains for row in pack([[0, 1, 2]], chains)) == [(0, 2), (1,)]
    assert all(row.prefix == 20 for row in pack([[0, 1, 2]], chains))


def test_prompts_that_part_late_share_what_they_have_in_common() -> None:
    common = list(range(SAME_PROMPT + 3))
    chains = [chain_of(([*common, own], False), ([7, 8], True)) for own in (50, 51)]
    assert pack([[0, 1]], chains) == [Packed(len(common), (0, 1), (2, 2))]


def test_equal_prompts_of_two_groups_stay_apart() -> None:
    """A row is one group's: what a group's members share must not depend on who else is in the batch."""
    chain = chain_of(([1, 2, 3], False), ([4], True))
    assert pack([[0], [1]], [chain, chain]) == [Packed(3, (0,), (0,)), Packed(3, (1,), (0,))]


def test_a_sampled_token_is_never_shared_even_if_all_sampled_the_same() -> None:
    chain = chain_of(([1, 2], False), ([3, 4], True))
    assert shared_prefix([chain, chain]) == 2


@BOUNDED
@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 60))
def test_micro_batches_cover_all_respect_the_bound_and_are_about_equal(sizes: list[int], bound: int) -> None:
    rows = [Packed(size, (number,), (0,)) for number, size in enumerate(sizes)]
    batches = micro_batches(rows, bound)
    assert sorted((row for batch in batches for row in batch), key=lambda row: row.chains) == rows
    for batch in batches:
        assert batch == sorted(batch, key=lambda row: row.chains)
        assert sum(row.tokens for row in batch) <= bound or len(batch) == 1
    totals = sorted(sum(row.tokens for row in batch) for batch in batches)
    if len(totals) > 1:
        assert totals[0] + totals[1] > bound or totals[-1] - totals[0] <= max(sizes), "no two could have been one"


def test_a_little_too_much_for_one_micro_batch_is_halved_not_cut_off() -> None:
    rows = [Packed(10, (number,), (0,)) for number in range(11)]
    assert [len(batch) for batch in micro_batches(rows, 100)] == [6, 5]


@BOUNDED
@given(st.integers(0, 20), st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 60))
def test_a_row_that_is_too_large_is_cut_between_its_chains(prefix: int, rests: list[int], bound: int) -> None:
    """Memory stays bounded for groups of any size: only a single chain may be larger than a micro-batch."""
    row = Packed(prefix, tuple(range(len(rests))), tuple(rests))
    parts = [part for batch in micro_batches([row], bound) for part in batch]
    parts.sort(key=lambda part: part.chains)
    assert [chain for part in parts for chain in part.chains] == [*row.chains]
    assert [rest for part in parts for rest in part.rests] == rests
    assert all(part.prefix == prefix for part in parts)
    assert all(part.tokens <= bound or len(part.chains) == 1 for part in parts)
    assert len(parts) == 1 or row.tokens > bound
