"""What a train step computed of the rollouts and tokens that it was given, for those who store or show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopwright.errors import ChainError
from loopwright.types.rollout import RolloutKey
from loopwright.types.tokens import FloatArray, IntArray, frozen_array


@dataclass(frozen=True, slots=True, eq=False)
class TrainedChain:
    """The trained tokens of one chain, in their order.

    `index` is the chain's place in the episode, and `positions` are the places of its trained tokens. `old_logprobs`
    are those under the weights before the step. `losses` are the tokens' shares of the loss, with token weight and
    sign; those of all tokens of a mini-batch add up to its loss.
    """

    index: int
    positions: IntArray
    old_logprobs: FloatArray
    losses: FloatArray

    def __post_init__(self) -> None:
        for name, dtype in (("positions", np.int32), ("old_logprobs", np.float32), ("losses", np.float32)):
            object.__setattr__(self, name, frozen_array(getattr(self, name), dtype))
        if not len(self.positions) == len(self.old_logprobs) == len(self.losses):
            raise ChainError(
                f"{len(self.positions)} trained tokens have {len(self.old_logprobs)} old logprobs and "
                f"{len(self.losses)} losses",
                remedy="report one of each for every trained token",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TrainedChain):
            return NotImplemented
        return (
            self.index == other.index
            and np.array_equal(self.positions, other.positions)
            and np.array_equal(self.old_logprobs, other.old_logprobs)
            and np.array_equal(self.losses, other.losses)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # As for a TokenChain: the constructor makes the arrays read-only again.
        return type(self), (self.index, self.positions, self.old_logprobs, self.losses)


@dataclass(frozen=True, slots=True)
class TrainedRollout:
    """A rollout of a train step. `token_weight` is the weight of each of its trained tokens in the loss.

    `chains` are those that were trained. There are none if the advantage is 0 and nothing else in the loss trains such
    rollouts, or if the numbers per token are switched off.
    """

    key: RolloutKey
    advantage: float
    token_weight: float
    chains: tuple[TrainedChain, ...] = ()
