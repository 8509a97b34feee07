"""Groups of random tokens, for measuring a learner without an engine."""

from __future__ import annotations

import numpy as np

from loopwright.types import Episode, Group, Rollout, RolloutKey, Scored, Task, Timing, TokenChain

TASK = Task.ask("made-up", "Say anything.")
LOGPROB = -5.0
"""What the tokens were sampled with, supposedly."""
ANSWERS = 8
"""Of the group that is one row."""


def random_group(prompt: int, answers: int, length: int, *, vocabulary: int, draw: int = 0) -> Group:
    """A group of `answers` to a prompt of so many tokens, each of `length` tokens. Half of them are rewarded. `draw` is
    its number, and the seed."""
    random = np.random.default_rng(draw)
    mask = np.arange(prompt + length) >= prompt
    asked = random.integers(0, vocabulary, prompt)
    rollouts = []
    for member in range(answers):
        ids = np.concatenate([asked, random.integers(0, vocabulary, length)])
        chain = TokenChain(ids, mask, np.where(mask, LOGPROB, 0.0), np.where(mask, 0, -1))
        key = RolloutKey("made-up", draw, member)
        rollouts.append(Rollout(key, TASK, Episode((), (chain,)), Scored(float(member % 2)), Timing(0.0)))
    return Group("made-up", draw, TASK, tuple(rollouts))


def row_of(tokens: int, *, vocabulary: int) -> Group:
    """A group that is packed into one row of so many tokens: a quarter of them is its prompt, the rest 8 answers."""
    length = tokens * 3 // 4 // ANSWERS + 1
    return random_group(tokens - ANSWERS * (length - 1), ANSWERS, length, vocabulary=vocabulary)
