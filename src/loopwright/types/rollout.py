"""One run of an agent loop on one task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from loopwright.types.drift import EpisodeDrift
from loopwright.types.parsed import Tool
from loopwright.types.program import ProgramOutput
from loopwright.types.reward import Failed, FailureCause, Reward, Scored, Unscored
from loopwright.types.task import Message, Task
from loopwright.types.tokens import TokenChain


class StopReason(StrEnum):
    """How an episode ended."""

    DONE = "done"
    """The agent finished by itself."""
    BUDGET = "budget"
    """The agent used up its own budget of tokens, turns or time. The episode is graded anyway (R2)."""
    ABORTED = "aborted"
    """The agent was interrupted, and will continue from its tokens."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What an agent did: the transcript, and the exact tokens behind it.

    `tools` are those that the model was offered last. `drift` is None where it was not measured. `output` is that of an
    agent that is a program.
    """

    messages: tuple[Message, ...]
    chains: tuple[TokenChain, ...]
    stop: StopReason = StopReason.DONE
    tools: tuple[Tool, ...] = ()
    drift: EpisodeDrift | None = None
    output: ProgramOutput | None = None

    @property
    def answer(self) -> str:
        """The text of the last assistant message, or an empty string."""
        for message in reversed(self.messages):
            if message.get("role") == "assistant":
                return str(message.get("content") or "")
        return ""

    @property
    def sampled_tokens(self) -> int:
        return sum(chain.sampled for chain in self.chains)

    @property
    def trained_chains(self) -> tuple[TokenChain, ...]:
        return tuple(chain for chain in self.chains if chain.trained)

    @property
    def trained_tokens(self) -> int:
        """Sampled tokens in trained chains. The rollout's weight depends on these only (T6)."""
        return sum(chain.sampled for chain in self.trained_chains)


@dataclass(frozen=True, slots=True, order=True)
class RolloutKey:
    """Names one rollout of a run: the group's draw, the member, and the attempt (0 is the first)."""

    task_set: str
    draw: int
    member: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.task_set}/{self.draw:06d}/{self.member:02d}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class Timing:
    """When the rollout started (Unix time), and how many seconds agent and judge took.

    `held_seconds` of the agent's seconds are those in which the engines answered nobody, as while weights are
    exchanged. `judged_at` is when judging began (Unix time). Both are None if nobody noted them.
    """

    started: float
    agent_seconds: float = 0.0
    judge_seconds: float = 0.0
    held_seconds: float | None = None
    judged_at: float | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout. `episode` is None when the agent failed before producing one.

    `worker` names the actor that ran its agent; None: it ran in the run's own process. `engines` are the names of the
    engines that answered it, as far as they are known.
    """

    key: RolloutKey
    task: Task
    episode: Episode | None
    reward: Reward
    timing: Timing
    worker: str | None = None
    engines: tuple[str, ...] = ()

    @property
    def score(self) -> float | None:
        """The reward as a number, or None: a failure has no number."""
        return self.reward.value if isinstance(self.reward, Scored) else None

    @property
    def is_partial(self) -> bool:
        """Whether its agent was interrupted, and will continue from the tokens stored here."""
        return self.episode is not None and self.episode.stop is StopReason.ABORTED

    @property
    def awaits_judge(self) -> bool:
        """Whether the episode is whole but has no score: it was not judged yet, or the judger failed."""
        judge_failed = isinstance(self.reward, Failed) and self.reward.cause is FailureCause.JUDGE
        whole = self.episode is not None and not self.is_partial
        return whole and (judge_failed or isinstance(self.reward, Unscored))

    def judged(self, reward: Reward, seconds: float, began: float | None = None) -> Rollout:
        """The same rollout with the judger's `reward`; judging `began` then and took `seconds`."""
        timing = replace(self.timing, judge_seconds=seconds, judged_at=began)
        return replace(self, reward=reward, timing=timing)

    @property
    def oldest_version(self) -> int | None:
        """The version of the oldest sampled token that will be trained."""
        chains = self.episode.chains if self.episode else ()
        versions = [chain.oldest_version for chain in chains if chain.trained]
        return min((version for version in versions if version is not None), default=None)
