"""Why a token did not train follows from what is stored."""

from __future__ import annotations

import numpy as np

from loopwright.buffer.token_numbers import ChainNumbers
from loopwright.runs.trained_tokens import TrainedTokens, WhyUntrained, why_untrained
from loopwright.types import TokenChain
from loopwright.types.spans import Spans


def chain(*, trained: bool = True, constrained: Spans = ()) -> TokenChain:
    """A prompt of one, and a token of each version from 0 to 3."""
    return TokenChain(
        np.arange(5, dtype=np.int32),
        np.array([False, True, True, True, True]),
        np.zeros(5, np.float32),
        np.array([-1, 0, 1, 2, 3], np.int32),
        trained=trained,
        constrained=constrained,
    )


NUMBERS = ChainNumbers(0, np.array([3, 4], np.int32), np.zeros(2, np.float32), np.zeros(2, np.float32))
WITH = TrainedTokens(1.0, 0.5, 0.25, 1.0, oldest=2, chains={0: NUMBERS})
OLD = WhyUntrained.TOO_OLD


def test_each_reason_is_told_where_it_holds() -> None:
    assert why_untrained(chain(), 0, WITH) == [None, OLD, OLD, None, None]
    forced = [None, OLD, WhyUntrained.CONSTRAINED, None, None]
    assert why_untrained(chain(constrained=((2, 3),)), 0, WITH) == forced
    assert why_untrained(chain(trained=False), 0, WITH) == [None, *[WhyUntrained.RECORDED] * 4]
    assert why_untrained(chain(), 0, None) == [None, *[WhyUntrained.NOT_TRAINED] * 4]


def test_a_rollout_without_advantage_trains_only_if_something_else_in_the_loss_does() -> None:
    none = TrainedTokens(0.0, 0.5, 0.0, 1.0, oldest=None)
    assert why_untrained(chain(), 0, none) == [None, *[WhyUntrained.NO_ADVANTAGE] * 4]
    also = TrainedTokens(0.0, 0.5, 0.25, 1.0, oldest=None, chains={0: NUMBERS})
    assert why_untrained(chain(), 0, also) == [None] * 5


def test_a_run_that_stores_no_numbers_of_tokens_trains_all_the_same() -> None:
    assert why_untrained(chain(), 0, TrainedTokens(1.0, 0.5, None, None, oldest=None)) == [None] * 5
