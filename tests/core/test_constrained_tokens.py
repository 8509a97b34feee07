"""Constrained tokens are masked when their group is taken, and counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_staleness import chain, group

from loopwright.core.constrained import constrained_numbers, without_constrained
from loopwright.core.partial_answer import joined
from loopwright.errors import ChainError, EngineError
from loopwright.types import FinishReason, Generation
from loopwright.types.spans import fits, joined_spans, shifted_spans, spanned


def test_what_is_constrained_is_masked_and_nothing_else() -> None:
    bound, free = replace(chain(-1, 0, 1, 1, 2), constrained=((1, 2), (3, 5))), chain(-1, 0)
    kept, masked = without_constrained(group(bound, free))
    first, second = (rollout.episode.chains[0] for rollout in kept.rollouts if rollout.episode)
    assert first.mask.tolist() == [False, False, True, False, False]
    assert first.versions.tolist() == [-1, -1, 1, -1, -1]
    assert (second, masked) == (free, 3)
    assert constrained_numbers([kept], masked, too_old=1) == {"response/constrained": 3 / 6}


def test_a_group_without_any_is_the_same() -> None:
    before = group(chain(0, 1))
    assert without_constrained(before) == (before, 0)
    assert constrained_numbers([before], 0, 0) == {"response/constrained": 0.0}
    assert constrained_numbers([], 0, 0) == {}


def test_an_old_token_that_does_not_train_makes_no_chain_old() -> None:
    assert replace(chain(-1, 0, 3), constrained=((1, 2),)).oldest_version == 3
    assert replace(chain(-1, 0, 3), constrained=((1, 3),)).oldest_version is None


@pytest.mark.parametrize("spans", [((0, 1),), ((2, 2),), ((1, 2), (2, 3)), ((2, 3), (1, 2)), ((1, 9),)])
def test_spans_that_are_none_of_sampled_tokens_are_refused(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ChainError, match="spans"):
        replace(chain(-1, 0, 0, 0), constrained=spans)


def test_spans_outside_of_an_answer_are_refused() -> None:
    with pytest.raises(EngineError, match="constrained"):
        Generation((1,), (-1.0,), (0,), FinishReason.STOP, constrained=((0, 2),))


@given(st.lists(st.booleans(), max_size=12), st.lists(st.integers(0, 12), max_size=3))
def test_an_answer_in_parts_keeps_its_spans(flags: list[bool], cuts: list[int]) -> None:
    size = len(flags)
    spans = joined_spans((place, place + 1) for place, flag in enumerate(flags) if flag)
    assert fits(spans, size)
    assert spanned(spans) == sum(flags)
    whole = Generation(tuple(range(size)), (-0.5,) * size, (0,) * size, FinishReason.STOP, constrained=spans)
    ends = sorted({min(cut, size) for cut in cuts} | {size})
    parts = []
    for begin, end in zip([0, *ends], ends, strict=False):
        own = shifted_spans(tuple((b, min(e, end)) for b, e in spans if b < end), -begin)
        ids, count = tuple(range(begin, end)), end - begin
        parts.append(Generation(ids, (-0.5,) * count, (0,) * count, FinishReason.STOP, constrained=own))
    assert joined(parts) == whole
    for cut in ends:
        assert whole.since(cut).constrained == shifted_spans(spans, -cut)
