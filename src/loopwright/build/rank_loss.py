"""The loss in a rank. A loss of the user's may work in the driver and raise here: a rank does not see the user's
environment variables (S3). So its errors say where it was called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loopwright.errors import ConfigError, LearnerError
from loopwright.learn.losses import TokenBatch, TokenLoss


def loss_in_rank(rank: int, make: Callable[[], TokenLoss]) -> TokenLoss:
    """The loss that `make` makes, for this rank."""
    with _said_in(rank):
        loss = make()

    def in_rank(batch: TokenBatch) -> Any:
        with _said_in(rank):
            return loss(batch)

    return in_rank


@contextmanager
def _said_in(rank: int) -> Iterator[None]:
    try:
        yield
    except (ConfigError, LearnerError) as error:
        if error.__cause__ is None:
            # The user's code has not raised: it is missing, or it returned something wrong.
            raise
        raise type(error)(
            f"{error.message}, in rank {rank} of the learner, which does not see your environment variables",
            remedy=f"if it needs one of them, give it to the loss by learner.loss.args; else {error.remedy}",
            **error.facts,
        ) from error
