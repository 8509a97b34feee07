"""SFT examples, which are trained together with the policy's own rollouts.

Their tokens were written, not sampled. So an example has ids and a mask of the answer, but no logprobs or versions
(T2). Which examples a step takes is a pure function of the seed and the step, so a resumed run takes the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from loopwright.core.order import epoch_order
from loopwright.types.tokens import BoolArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A conversation as token ids. `mask` is 1 on the tokens of the last answer, which are trained."""

    ids: IntArray
    mask: BoolArray

    @classmethod
    def of(cls, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Self:
        mask = [False] * len(prompt_ids) + [True] * len(answer_ids)
        return cls(np.array([*prompt_ids, *answer_ids], np.int32), np.array(mask, np.bool_))


@dataclass(frozen=True, slots=True)
class SftTerm:
    """`coefficient` times the mean negative log-likelihood of each step's examples is added to the loss."""

    examples: tuple[Example, ...]
    coefficient: float
    examples_per_step: int
    seed: int

    def at(self, step: int) -> list[Example]:
        """The examples of train step `step` (the first is 1). Every example comes once per epoch, and every epoch has
        another order."""
        size = len(self.examples)
        first = (step - 1) * self.examples_per_step
        draws = [divmod(first + place, size) for place in range(self.examples_per_step)]
        orders = {epoch: epoch_order(self.seed, epoch, size) for epoch, _ in draws}
        return [self.examples[orders[epoch][place]] for epoch, place in draws]
