"""Closed sets of choices that the config offers and the core acts on."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

OnAgentError = Literal["fail", "grade"] | float
"""What an agent that raised is worth: nothing (its rollout failed), what the judger says of what it did so far, or a
fixed reward."""


class Schedule(StrEnum):
    """How the learning rate moves after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Down to zero at the end of the run."""
    COSINE = "cosine"
    """Down to zero along half a cosine."""


class Aggregate(StrEnum):
    """How token losses become one number. Rollouts come first: one with ten chains is still one rollout (T6)."""

    SEQUENCE = "sequence"
    """The mean over each rollout's tokens, then over rollouts: every rollout counts the same."""
    TOKEN = "token"
    """The mean over all tokens of the mini-batch: every token counts the same."""
