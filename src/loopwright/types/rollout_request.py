"""A request to a worker: one attempt at one rollout, as plain data that can be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from loopwright.types.rollout import Rollout, RolloutKey
from loopwright.types.sampling import Sampling
from loopwright.types.task import Task


class Split(StrEnum):
    """What a rollout is made for. A task set for training and one for evaluation may have the same name."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One attempt at one rollout.

    `key.task_set` and `split` name the task set. `sampling` holds the seed of this attempt. `seconds` is how long the
    agent may take. `resume_from` is a partial rollout of the same attempt: the agent continues from its tokens.
    """

    split: Split
    key: RolloutKey
    task: Task
    sampling: Sampling
    seconds: float
    resume_from: Rollout | None = None

    @property
    def task_set(self) -> str:
        return self.key.task_set

    @property
    def group(self) -> str:
        """The name of its group within the run. Training and evaluation may use the same names of task sets."""
        return f"{self.split}/{self.key.task_set}/{self.key.draw:06d}"

    @property
    def seed(self) -> int:
        return self.sampling.seed
