"""What is to be rolled out, and under which limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from loopwright.ports import AgentLoop, GroupJudger, Judger, Sampler
from loopwright.produce.chain_choice import ChainChoice
from loopwright.produce.filtering import Filter
from loopwright.produce.rollout import RecordingPolicy
from loopwright.types import OnAgentError, ProduceKind, Rollout, RolloutKey, Sampling, Task, TokenChain


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an agent may take, and how often one episode is put before its judger."""

    agent_timeout_seconds: float = 600.0
    judge_attempts: int = 2


@dataclass(frozen=True, slots=True)
class TaskSetRuntime:
    """One task set, ready to run: where its tasks come from, who works on them, who scores them, and which groups
    are trained: all of them without a filter. `train` chooses the chains of a rollout that are. With `produce` SYNC
    its groups are made by the newest weights alone, also where those of others are made ahead. Its rollouts may be
    interrupted if its loop is `resumable`; its agent talks to a gateway if it is `served`."""

    name: str
    sampler: Sampler
    loop: AgentLoop
    judger: Judger | GroupJudger
    sampling: Sampling
    weight: float = 1.0
    resumable: bool = False
    served: bool = False
    on_agent_error: OnAgentError = "fail"
    filter: Filter | None = None
    train: ChainChoice | None = None
    produce: ProduceKind | None = None
    own_judger: Judger | None = field(init=False)
    """Who judges each rollout by itself; None: whole groups are judged."""

    def __post_init__(self) -> None:
        # Found out once: to ask an object whether it has a protocol's methods takes as long as to judge a short answer.
        own = None if isinstance(self.judger, GroupJudger) else self.judger
        object.__setattr__(self, "own_judger", own)


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to be made. `split` keeps the seeds of training and of each evaluation apart.

    With `judge_only`, a rollout that was made before, its episode is not made again but only put before its judge. With
    `resume_from`, a partial rollout of the same attempt, it goes on from the tokens there. `first_attempt` is where
    attempts are counted from: those of an expired group do not count against its next life.
    """

    key: RolloutKey
    task: Task
    task_set: TaskSetRuntime
    split: str = "train"
    judge_only: Rollout | None = None
    resume_from: Rollout | None = None
    first_attempt: int = 0

    def again(self) -> Job:
        """The next attempt at the same member: with another seed, because the first one failed."""
        return replace(self, key=replace(self.key, attempt=self.key.attempt + 1), resume_from=None)


class PolicyFactory(Protocol):
    """Makes the policy of one rollout from the prefix of its request ids and its seeded sampling."""

    def __call__(
        self, prefix: str, sampling: Sampling, *, resumable: bool, resume_from: Sequence[TokenChain]
    ) -> RecordingPolicy: ...
