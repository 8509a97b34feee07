"""The settings of production: its task sets, and how their groups are made."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.ports import Judger, Sampler
from loopwright.produce.filtering import Filter
from loopwright.types import PauseMode, ProduceKind, Sampling, TailBatch


@dataclass(frozen=True, slots=True)
class TaskSetRuntime:
    """One task set, as the driver sees it: where its tasks come from, how its rollouts are sampled, who scores them,
    and which groups are trained. Without a filter, all are. Its agent is known to the workers.

    With `produce` SYNC only the newest weights make its groups, even if other task sets make groups ahead.
    """

    name: str
    sampler: Sampler
    judger: Judger
    sampling: Sampling
    weight: float = 1.0
    filter: Filter | None = None
    produce: ProduceKind | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an agent may take, how often a judger is asked about one episode, and after how many seconds of silence
    a worker counts as lost."""

    agent_timeout_seconds: float = 600.0
    judge_attempts: int = 2
    worker_silence_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """`min_members` None means all members. `horizon` is how many steps the weights of one version may feed.
    `sync_interval` is after how many steps there are newer weights.

    `last_step` is the last step that is trained: no group is made for a later one.
    """

    groups_per_step: int
    samples_per_task: int
    min_members: int | None = None
    failure_budget: int = 16
    filter_budget: int = 256
    kind: ProduceKind = ProduceKind.SYNC
    horizon: int = 1
    sync_interval: int = 1
    over_sample: float = 0.0
    tail_batch: TailBatch = "immediate"
    in_flight: PauseMode = PauseMode.DRAIN
    last_step: int | None = None

    @property
    def least(self) -> int:
        """How many scored members a group needs."""
        return self.min_members or self.samples_per_task
