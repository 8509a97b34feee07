"""What a train step did with one rollout and with each of its tokens, and why some tokens did not train.

Reasons are not stored: they follow from the rollout, its step and the staleness policy of that time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loopwright.buffer.archive import Archive, GroupKey, Parcel, ParcelKind
from loopwright.buffer.token_numbers import ChainNumbers, decode_numbers
from loopwright.runs.step_groups import step_terms
from loopwright.types import RolloutKey, TokenChain


class WhyUntrained(StrEnum):
    """Why a sampled token did not train."""

    NOT_TRAINED = "not_trained"
    """Its rollout is in no train step: its group was left out or is not trained yet, or the rollout has no score."""
    RECORDED = "recorded"
    """Its chain is only recorded."""
    CONSTRAINED = "constrained"
    """A constraint on the answer left no choice."""
    TOO_OLD = "too_old"
    """It was sampled by weights that were too old for the step."""
    NO_ADVANTAGE = "no_advantage"
    """Its rollout has advantage 0, and nothing else in the loss trains such rollouts."""


class LikelierSide(StrEnum):
    """Which shares of the loss belong to tokens that their own terms make likelier."""

    BELOW = "below"
    """Those below zero: the loss is a ratio times the advantage, negated."""
    ABOVE = "above"
    """Those above zero: the loss is a logprob, which is below zero itself, times the advantage, negated."""


LIKELIER = {
    "ppo_clip": LikelierSide.BELOW,
    "gspo": LikelierSide.BELOW,
    "cispo": LikelierSide.ABOVE,
    "reinforce": LikelierSide.ABOVE,
}
CLIPPED = frozenset({"ppo_clip", "gspo"})
"""Losses with which a clipped token has a share and no gradient."""


class PushMeaning(NamedTuple):
    """What the sign of a token's share of the loss says of its gradient. With `may_be_clipped`, the gradient may be
    zero: which tokens were clipped is not stored."""

    likelier: LikelierSide
    may_be_clipped: bool


def push_meaning(learner: Mapping[str, Any]) -> PushMeaning | None:
    """By the `learner` section of a config. None: the sign says nothing for certain, because a divergence from a
    reference is part of the shares, or the loss is the user's own or unknown."""
    loss = learner.get("loss")
    kind = loss.get("kind") if isinstance(loss, Mapping) else None
    side = LIKELIER.get(kind) if isinstance(kind, str) else None
    if side is None or learner.get("kl") is not None:
        return None
    # With one mini-batch the ratio is exactly 1, which no bound clips.
    return PushMeaning(side, kind in CLIPPED and learner.get("mini_batches") != 1)


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """What the step computed of a rollout. `loss_terms` is the sum of the absolute shares of the loss of its tokens,
    and `step_terms` that of all tokens of the step. They are None, and there are no `chains`, if no numbers of single
    tokens were stored. Weights of a version before `oldest` were too old for the step."""

    advantage: float
    token_weight: float
    loss_terms: float | None
    step_terms: float | None
    oldest: int | None
    chains: Mapping[int, ChainNumbers] = field(default_factory=dict)

    @property
    def push(self) -> float | None:
        """The rollout's share of the step's loss terms."""
        return self.loss_terms / self.step_terms if self.loss_terms is not None and self.step_terms else None

    def pushes(self, index: int) -> npt.NDArray[np.float32] | None:
        """The share of each trained token of a chain, with the sign of its loss term. `push_meaning` says what the sign
        tells."""
        numbers = self.chains.get(index)
        return numbers.losses / np.float32(self.step_terms) if numbers is not None and self.step_terms else None


def read_trained(
    db: sqlite3.Connection, archive: Archive, group: GroupKey, key: RolloutKey, step: int
) -> TrainedTokens | None:
    """What train step `step` computed of a rollout. None if that was not stored."""
    place = (*group, key.member, key.attempt)
    found = db.execute(
        "SELECT advantage, token_weight, loss_terms, numbers, chains IS NULL"
        " FROM trained JOIN rollouts USING (task_set, draw, round, member, attempt)"
        " WHERE (task_set, draw, round, member, attempt) = (?, ?, ?, ?, ?)",
        place,
    ).fetchone()
    if found is None:
        return None
    advantage, token_weight, loss_terms, numbers, is_moved = found
    # A file may be there that an undone training of this step has left: it counts if the rollout was moved to it.
    if numbers is None and is_moved:
        numbers = archive.numbers(group, Parcel(ParcelKind.TRAINED, step), key.member, key.attempt)
    chains = decode_numbers(numbers) if numbers is not None else ()
    return TrainedTokens(
        advantage,
        token_weight,
        loss_terms,
        step_terms(db, step),
        _oldest(db, group, step),
        {one.index: one for one in chains},
    )


def _oldest(db: sqlite3.Connection, group: GroupKey, step: int) -> int | None:
    """The oldest version that was not too old, by the policy of the lineage that trained the group."""
    found = db.execute(
        "SELECT horizon FROM trail JOIN lineages USING (lineage) WHERE (task_set, draw, round, trail.step, event)"
        " = (?, ?, ?, ?, 'consumed') ORDER BY place DESC LIMIT 1",
        (*group, step),
    ).fetchone()
    return None if found is None or found[0] is None else int(step - found[0])


def why_untrained(chain: TokenChain, index: int, trained: TrainedTokens | None) -> list[WhyUntrained | None]:
    """For each token of the chain why it did not train. None: it did, or it was not sampled."""
    reasons = np.zeros(len(chain), np.int8)
    order = tuple(WhyUntrained)

    def mark(where: npt.NDArray[np.bool_], why: WhyUntrained) -> None:
        reasons[where & (reasons == 0)] = order.index(why) + 1

    if not chain.trained:
        mark(chain.mask, WhyUntrained.RECORDED)
    if chain.constrained:
        mark(chain.mask & chain.constrained_mask, WhyUntrained.CONSTRAINED)
    if trained is None:
        mark(chain.mask, WhyUntrained.NOT_TRAINED)
    else:
        if trained.oldest is not None:
            mark(chain.mask & (chain.versions < trained.oldest), WhyUntrained.TOO_OLD)
        if trained.advantage == 0 and index not in trained.chains:
            mark(chain.mask, WhyUntrained.NO_ADVANTAGE)
    return [order[code - 1] if code else None for code in reasons.tolist()]
