"""The result of an evaluation for one task. All metrics are computed from such results, also the user's own."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.types.reward import Scored
from loopwright.types.rollout import Rollout
from loopwright.types.task import Task


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task with all its samples, in order. A failed sample is a rollout without a score, never a 0 (R2)."""

    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def scored(self) -> tuple[Scored, ...]:
        """The rewards of the samples that have one."""
        return tuple(rollout.reward for rollout in self.rollouts if isinstance(rollout.reward, Scored))

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(reward.value for reward in self.scored)

    @property
    def failed(self) -> int:
        """How many samples have no score."""
        return len(self.rollouts) - len(self.scored)
