"""What a driver and the ranks of its learner say to one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from loopwright.errors import LoopwrightError
from loopwright.learn.execute import StepNumbers
from loopwright.types import TensorSpec


class RankWork(StrEnum):
    """What a rank can be asked for. All ranks get the same calls in the same order, because each is a collective."""

    STEP = "step"
    SAVE = "save"
    LOAD = "load"
    LOGPROBS = "logprobs"
    PUBLISH = "publish"
    EXPORT = "export"


@dataclass(frozen=True, slots=True)
class RankCall:
    """The driver wants some work done, with these arguments."""

    work: RankWork
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsTaken:
    """The driver has taken the weights that rank 0 has offered."""


@dataclass(frozen=True, slots=True)
class RankBeat:
    """The rank is alive, and has done so many pieces of work since it began."""

    done: int


@dataclass(frozen=True, slots=True)
class WeightOffer:
    """Rank 0 has weights: first which ones will come, then the file of each bucket. It waits for `WeightsTaken`."""

    tensors: Mapping[str, TensorSpec] | None = None
    bucket: Path | None = None
    names: tuple[str, ...] = ()
    """The tensors of the bucket, in their order."""


@dataclass(frozen=True, slots=True)
class RankDone:
    """A call has ended well."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A call has ended with an error, which is in `words`. `error` is one that Loopwright raises on purpose, or a
    RemoteError for any other. Without it, the rank has lost the others: they know why."""

    words: str
    error: LoopwrightError | None = None


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank has found out in its part of a step, and what that took."""

    numbers: StepNumbers
    started: float
    """Unix time, by the clock of its machine."""
    seconds: float
    communication_seconds: float
    tokens: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The first message to a rank: who it is, where it meets the others, and what it needs to build its model and
    recipe. `folder` is new at every start. All ranks of a machine meet there, unless there is an `address`."""

    rank: int
    ranks: int
    folder: Path
    silence_seconds: float
    setup: Any
    address: str | None = None
    """On a cluster: host and port of rank 0. A rank sees no other GPUs than its own there."""
