"""The K rollouts of one task: the unit of filtering and training."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from loopwright.types.reward import Scored
from loopwright.types.rollout import Rollout
from loopwright.types.task import Task


class GroupStatus(StrEnum):
    """Where a drawn group stands. Every group is in exactly one of these at any moment (R3)."""

    PENDING = "pending"
    """Drawn; some of its rollouts are still to come."""
    ABORTED = "aborted"
    """Interrupted: what was made of it is stored, and it goes on from there."""
    COMPLETED = "completed"
    """All its members are scored; it waits for a train step."""
    EXPIRED = "expired"
    """Its tokens became too old before a train step took it; its members are made again."""
    CONSUMED = "consumed"
    """Trained at the step recorded with it."""
    FILTERED = "filtered"
    """All its members are scored, but the filter saw nothing to learn in them; another group takes its place."""
    FAILED = "failed"
    """Too few members could be scored, after all retries."""
    DISCARDED = "discarded"
    """Produced after the checkpoint that a deterministic run went back to; it is produced again."""
    ROLLED_BACK = "rolled_back"
    """Sampled by weights that a resumed run no longer has; its task is drawn again."""


@dataclass(frozen=True, slots=True)
class Group:
    """The scored rollouts of one task, in member order."""

    task_set: str
    draw: int
    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def oldest_version(self) -> int | None:
        """The version of the oldest token of any member that may be trained."""
        return min((v for rollout in self.rollouts if (v := rollout.oldest_version) is not None), default=None)

    @property
    def rewards(self) -> tuple[float, ...]:
        """The members' rewards. A group is built from scored rollouts only."""
        return tuple(r.reward.value for r in self.rollouts if isinstance(r.reward, Scored))
