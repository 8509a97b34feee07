"""The numbers that tell how old a batch is."""

from __future__ import annotations

import numpy as np

from loopwright.core.ages import staleness_numbers
from loopwright.types import Episode, Group, Rollout, RolloutKey, Scored, Task, Timing, TokenChain

TASK = Task.ask("t", "say 1", truth=1)


def group(*versions: int) -> Group:
    """One member, with a prompt of one token and a sampled token of each version."""
    stamped = np.array([-1, *versions])
    chain = TokenChain(np.full_like(stamped, 5), stamped >= 0, np.zeros(len(stamped), np.float32), stamped)
    rollout = Rollout(RolloutKey("train", 0, 0), TASK, Episode((), (chain,)), Scored(1.0), Timing(0.0))
    return Group("train", 0, TASK, (rollout,))


def test_every_token_counts_the_same_and_prompts_do_not_count():
    numbers = staleness_numbers([group(4, 4, 4), group(2)], 5, masked=0)
    assert numbers == {"staleness/mean": 0.5, "staleness/max": 2.0, "staleness/masked": 0.0}


def test_masked_tokens_are_a_share_of_all_that_were_sampled():
    numbers = staleness_numbers([group(4, -1, 4, 4)], 5, masked=1)
    assert numbers == {"staleness/mean": 0.0, "staleness/max": 0.0, "staleness/masked": 0.25}


def test_a_batch_that_is_masked_whole_has_no_mean():
    assert staleness_numbers([group(-1, -1)], 5, masked=2) == {"staleness/masked": 1.0}


def test_without_tokens_there_is_nothing_to_tell():
    assert staleness_numbers([], 5, masked=0) == {}
