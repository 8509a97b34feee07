"""An answer that is cut short goes on: each token is there once, and is told once."""

from __future__ import annotations

import pytest

from loopwright.core.partial_answer import PartialAnswer, joined
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling

PROMPT = (1, 2, 3)
REQUEST = GenerateRequest("a", PROMPT, Sampling(max_new_tokens=6))


def tokens(first: int, last: int, version: int = 0, finish: FinishReason = FinishReason.ABORT) -> Generation:
    ids = tuple(range(first, last + 1))
    return Generation(ids, tuple(-float(one) for one in ids), (version,) * len(ids), finish)


def test_an_answer_in_one_piece_is_what_the_engine_returned() -> None:
    told: list[Generation] = []
    answer = PartialAnswer(REQUEST, told.append)
    assert answer.rest() is REQUEST
    returned = tokens(10, 12, finish=FinishReason.STOP)
    assert answer.add(returned) is returned
    assert told == [tokens(10, 12)]


def test_tokens_that_were_heard_outlive_the_engine_that_sampled_them() -> None:
    told: list[Generation] = []
    answer = PartialAnswer(REQUEST, told.append)
    assert answer.rest() is REQUEST
    answer.hear(tokens(10, 11))
    answer.hear(tokens(12, 12))
    # The engine dies here. Another one, with other weights, goes on.
    rest = answer.rest()
    assert rest.prompt_ids == (*PROMPT, 10, 11, 12)
    assert (rest.sampling.max_new_tokens, rest.sampled_before) == (3, 3)
    answer.hear(tokens(13, 13, version=1))
    whole = answer.add(tokens(13, 14, version=1, finish=FinishReason.STOP))
    assert whole.ids == (10, 11, 12, 13, 14)
    assert whole.logprobs == (-10.0, -11.0, -12.0, -13.0, -14.0)
    assert whole.versions == (0, 0, 0, 1, 1)
    assert whole.finish is FinishReason.STOP
    assert [part.ids for part in told] == [(10, 11), (12,), (13,), (14,)]
    assert {part.finish for part in told} == {FinishReason.ABORT}


def test_it_goes_on_from_what_was_sampled_before() -> None:
    answer = PartialAnswer(REQUEST, so_far=tokens(10, 11))
    assert answer.rest() == REQUEST.after(tokens(10, 11))
    assert answer.add(tokens(12, 13, finish=FinishReason.STOP)).ids == (10, 11, 12, 13)


@pytest.mark.parametrize(("last", "full"), [(14, False), (15, True)])
def test_it_is_full_when_no_token_is_left_to_ask_for(last: int, full: bool) -> None:
    answer = PartialAnswer(REQUEST)
    assert not answer.is_full
    answer.add(tokens(10, last))
    assert answer.is_full is full
    assert answer.cut_by_length() == tokens(10, last, finish=FinishReason.LENGTH)


def test_nothing_is_told_of_an_answer_without_tokens() -> None:
    told: list[Generation] = []
    answer = PartialAnswer(REQUEST, told.append)
    assert answer.add(joined([])).finish is FinishReason.ABORT
    assert (told, answer.tokens) == ([], 0)
