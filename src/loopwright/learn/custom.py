"""The boundary around the user's own advantage and loss. If they raise, or return something wrong, the error names
them.

Without this check a wrong shape or a NaN would spread silently, or appear later as a gradient that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from loopwright.core.advantage import Advantage, Scores
from loopwright.core.blame import blame
from loopwright.errors import LearnerError
from loopwright.learn.losses import TokenBatch, TokenLoss
from loopwright.models.memory import is_out_of_memory


def custom_advantage(path: str, function: Callable[..., Any], args: Mapping[str, Any]) -> Advantage:
    """The function at `path`, called with all groups of a step and its own `args`."""

    def advantage(groups: Sequence[Scores]) -> list[list[float]]:
        result = _call("advantage", path, function, groups, args)
        try:
            found = [[float(value) for value in members] for members in result]
        except (TypeError, ValueError) as error:
            raise _wrong_advantage(
                path, f"returned {result!r:.80}, which is not a list of numbers per group"
            ) from error
        shape, expected = [len(members) for members in found], [len(group.rewards) for group in groups]
        if shape != expected:
            raise _wrong_advantage(path, f"returned {shape} numbers for groups of {expected} members")
        if not all(math.isfinite(value) for members in found for value in members):
            raise _wrong_advantage(path, "returned a number that is not finite")
        return found

    return advantage


def custom_loss(path: str, function: Callable[..., Any], args: Mapping[str, Any]) -> TokenLoss:
    """The function at `path`, called with the tokens of a micro-batch and its own `args`."""

    def loss(batch: TokenBatch) -> torch.Tensor:
        result = _call("loss", path, function, batch, args)
        if not isinstance(result, torch.Tensor) or result.shape != batch.logprobs.shape:
            shape = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise _wrong_loss(path, f"returned {shape} for {len(batch.logprobs)} tokens")
        if not torch.isfinite(result).all():
            raise _wrong_loss(path, "returned a loss that is not finite")
        if not result.requires_grad:
            raise _wrong_loss(path, "returned a loss that does not depend on batch.logprobs")
        return result

    return loss


def try_loss(loss: TokenLoss, *, with_reference: bool) -> list[float]:
    """Call the loss on four tokens: two with a positive and two with a negative advantage. In each pair one token has
    become more likely and the other less likely.

    The tokens have reference logprobs only if those of the run have them.
    """
    old = torch.full((4,), -1.0)
    moved = torch.tensor([-0.5, -1.5, -0.5, -1.5], requires_grad=True)
    advantages, sequence = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0, 0, 1, 1])
    batch = TokenBatch(moved, old, old, advantages, sequence, old if with_reference else None)
    return [round(value, 4) for value in loss(batch).tolist()]


def _call(what: str, path: str, function: Callable[..., Any], given: object, args: Mapping[str, Any]) -> Any:
    try:
        return function(given, **args)
    # Also what would end the process: the user would not hear why, and a driver would take it for a lost rank.
    except BaseException as error:
        if is_out_of_memory(error):
            # The step says how much it wanted to compute, and which setting halves that.
            raise
        raise LearnerError(
            f"{what} {path!r} raised {blame(error, function)}", remedy=f"fix the {what}: it is called in every step"
        ) from error


def _wrong_advantage(path: str, problem: str) -> LearnerError:
    return LearnerError(
        f"advantage {path!r} {problem}", remedy="return, for each group, one finite number for each of its rewards"
    )


def _wrong_loss(path: str, problem: str) -> LearnerError:
    return LearnerError(
        f"loss {path!r} {problem}",
        remedy="return a tensor with one finite loss per token, computed from batch.logprobs",
    )
