"""Drift as a number: the fewest tokens that make one stream the other."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core import drift
from loopwright.core.drift import Drift, Mismatch, drift_between, total

streams = st.lists(st.integers(0, 5), max_size=30)


@given(streams)
def test_equal_streams_do_not_drift(ids: list[int]) -> None:
    assert drift_between(ids, ids) == Drift(len(ids))


@given(streams, streams)
def test_lost_and_invented_tokens_explain_the_lengths(recorded: list[int], naive: list[int]) -> None:
    found = drift_between(recorded, naive)
    assert len(recorded) - found.lost + found.invented == len(naive)
    assert (found.first is None) == (recorded == naive)
    assert found.lost <= len(recorded)
    assert found.invented <= len(naive)
    # No worse than what the standard library finds, which does not look for the fewest.
    matched = sum(block.size for block in difflib.SequenceMatcher(None, recorded, naive, False).get_matching_blocks())
    assert found.lost <= len(recorded) - matched


@given(streams, streams, st.integers(0, 5))
def test_the_first_mismatch_is_where_the_streams_part(head: list[int], rest: list[int], other: int) -> None:
    naive = [*head, other, *rest]
    recorded = [*head, 9, *rest]
    found = drift_between(recorded, naive)
    assert (found.tokens, found.wrong) == (len(recorded), 1)
    place = len(head)
    assert found.first == Mismatch(
        place, tuple(head[-6:]), tuple(recorded[place : place + 6]), tuple(naive[place : place + 6])
    )


def test_streams_that_have_little_in_common_are_not_compared_to_the_end() -> None:
    recorded, naive = list(range(0, 4000, 2)), list(range(1, 4001, 2))
    assert len(recorded) > drift.MOST_EDITS
    found = drift_between([-1, *recorded, -2], [-1, *naive, -2])
    assert (found.lost, found.invented) == (len(recorded), len(naive))


def test_drifts_add_up() -> None:
    one, other = drift_between([1, 2, 3], [1, 2, 3]), drift_between([1, 2, 3], [1, 9])
    assert total([one, other, other]) == Drift(9, 4, 2, other.first)
    assert total([]) == Drift()
