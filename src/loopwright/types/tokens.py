"""Tokens with their provenance: what went into the model, what came out, and which weights sampled it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from loopwright.errors import ChainError
from loopwright.types.sampling import FinishReason
from loopwright.types.spans import Spans, fits

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


def frozen_array(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """A private, read-only, one-dimensional copy, so that nobody can change a value after it was passed on."""
    array = np.array(values, dtype=dtype)
    if array.ndim != 1:
        raise ChainError(
            f"a token stream must be one-dimensional, got shape {array.shape}",
            remedy="pass one flat sequence per stream",
        )
    array.setflags(write=False)
    return array


class ChainStart(StrEnum):
    """Why a chain began."""

    FIRST = "first"
    """The rollout's first model call."""
    REWRITTEN = "rewritten"
    """The prompt did not extend any chain: its history was edited."""
    BRANCH = "branch"
    """The prompt went back to an earlier point of a chain and continued differently."""
    SEPARATE = "separate"
    """Another conversation, such as a sub-agent's: it shares at most a system message with the recorded ones."""
    COMPACTED = "compacted"
    """The history was replaced by a summary that the model wrote."""
    TOOLS = "tools"
    """The history is a recorded one, but the model is offered other tools."""
    TEMPLATE = "template"
    """The history is a recorded one, but the chat template would write it differently now."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call: the ids that the engine received, and what it sampled."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: FinishReason

    def __post_init__(self) -> None:
        _same_length(ids=self.ids, logprobs=self.logprobs, versions=self.versions)


@dataclass(frozen=True, slots=True, eq=False)
class TokenChain:
    """One linear training sequence (T2, T3).

    `mask` is 1 exactly where the token was sampled; elsewhere `logprobs` is 0.0 and `versions` is -1. A chain that is
    not `trained` is only recorded. `constrained` are spans of sampled tokens that are not trained, because a constraint
    on the answer left no choice (see `Generation`). Chains are equal if all of that is equal; like an array, a chain
    has no hash.
    """

    ids: IntArray
    mask: BoolArray
    logprobs: FloatArray
    versions: IntArray
    start: ChainStart = ChainStart.FIRST
    trained: bool = True
    constrained: Spans = ()
    sampled: int = field(init=False)
    """How many of its tokens were sampled."""
    oldest_version: int | None = field(init=False)
    """The version of the oldest sampled token that is not constrained, or None if there is none."""

    def __post_init__(self) -> None:
        for name, dtype in (("ids", np.int32), ("mask", np.bool_), ("logprobs", np.float32), ("versions", np.int32)):
            object.__setattr__(self, name, frozen_array(getattr(self, name), dtype))
        _same_length(ids=self.ids, mask=self.mask, logprobs=self.logprobs, versions=self.versions)
        if np.count_nonzero(np.isfinite(self.logprobs)) < len(self):
            raise ChainError(
                "a sampled token has no finite logprob",
                remedy="the engine must report the logprob of every token that it samples",
            )
        sampled = self.versions[self.mask]
        oldest = int(np.minimum.reduce(sampled)) if len(sampled) else None
        if (oldest is not None and oldest < 0) or np.count_nonzero(self.versions != -1) != len(sampled):
            raise ChainError(
                "versions must be >= 0 where the mask is 1, and -1 elsewhere",
                remedy="let the engine stamp each token with the version of its weights when it samples it",
            )
        object.__setattr__(self, "sampled", len(sampled))
        object.__setattr__(self, "oldest_version", self._oldest_trainable() if self.constrained else oldest)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def constrained_mask(self) -> BoolArray:
        """True where a sampled token is constrained."""
        found = np.zeros(len(self), np.bool_)
        for begin, end in self.constrained:
            found[begin:end] = True
        return found

    def _oldest_trainable(self) -> int | None:
        constrained = self.constrained_mask
        if not fits(self.constrained, len(self)) or (constrained & ~self.mask).any():
            raise ChainError(
                f"the spans {self.constrained} are not spans of sampled tokens",
                remedy="say of sampled tokens only that they were constrained",
            )
        left = self.versions[self.mask & ~constrained]
        return int(np.minimum.reduce(left)) if len(left) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenChain):
            return NotImplemented
        return self is other or (
            self.start is other.start
            and self.trained == other.trained
            and self.constrained == other.constrained
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.mask, other.mask)
            and np.array_equal(self.logprobs, other.logprobs)
            and np.array_equal(self.versions, other.versions)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # numpy restores arrays as writeable ones; the constructor makes them read-only and checks them again.
        streams = self.ids, self.mask, self.logprobs, self.versions
        return type(self), (*streams, self.start, self.trained, self.constrained)


def _same_length(**streams: Sequence[object] | npt.NDArray[np.generic]) -> None:
    if len(set(map(len, streams.values()))) > 1:
        lengths = {name: len(stream) for name, stream in streams.items()}
        raise ChainError(
            f"per-token streams must align, got lengths {lengths}",
            remedy="report exactly one logprob and one version for each sampled id",
        )
