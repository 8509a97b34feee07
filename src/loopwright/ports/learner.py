"""Turns groups into better weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from loopwright.ports.weights import WeightSink
from loopwright.types import Group, TrainedRollout


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one train step did. `metrics` are plain numbers, ready for a tracker. `rollouts` are those of the step that
    have an episode, in the order of its groups."""

    version: int
    metrics: Mapping[str, float]
    rollouts: tuple[TrainedRollout, ...] = ()


class Learner(Protocol):
    """Owns the weights. `version` counts the train steps since the initial weights."""

    @property
    def version(self) -> int: ...

    @property
    def describes(self) -> str:
        """Where and how it computes, for people."""
        ...

    def standing(self) -> Sequence[Mapping[str, Any]]:
        """Each of its ranks, by what they have said. Empty if it computes in this process."""
        ...

    async def step(self, groups: Sequence[Group]) -> StepReport:
        """One train step: afterwards `version` is one higher."""
        ...

    async def save(self, folder: Path) -> None:
        """Write everything that `load` needs to continue bit for bit. No pickle."""
        ...

    async def load(self, folder: Path) -> None: ...

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        """The logprob of each token but the first under the present weights."""
        ...

    async def publish(self, sink: WeightSink) -> None:
        """Give the present weights to `sink`, bucket by bucket, in the learner's own thread."""
        ...

    async def export(self, folder: Path) -> None:
        """Write model and tokenizer as `save_pretrained` does, for any other tool to load."""
        ...
