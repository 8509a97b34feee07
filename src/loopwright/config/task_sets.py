"""The schema of task sets: where tasks come from, which agent works on them, and who scores it.

Everything that is known of an agent kind is on its class here. Its loop is made in `agents/from_config.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from loopwright.config.base import Count, CountOrZero, FromYaml, Positive, Section, Share, Text
from loopwright.config.data import DataConfig
from loopwright.config.needs import Need, Outside, code_if_own
from loopwright.config.placement import PlacedSection
from loopwright.config.problems import KeyPath, Problem, suggest
from loopwright.config.programs import ProgramReward, RunnerConfig
from loopwright.config.tools import ToolConfig
from loopwright.types import OnAgentError, ProduceKind

TRAINED = ("all", "main")
"""Which chains of a rollout are trained: all of them, or those of its main conversation."""


class AgentKind(PlacedSection):
    """What every kind of agent says about itself. Other modules ask these questions, and never which kind it is. Each
    kind also has the settings `judger` and `on_agent_error`."""

    served: ClassVar[bool] = False
    """Whether it talks to the model through a gateway."""

    is_program: ClassVar[bool] = False
    """Whether it is a program that a runner starts. Its loop ends it when its time is up, and may still grade it."""

    resumable: ClassVar[bool | None] = False
    """Whether a rollout that was interrupted can go on from the tokens that it has, as `AgentLoop` says. None: the
    loop itself knows."""

    @property
    def brings_reward(self) -> bool:
        """Whether its rollouts come with their reward, so that no judger is asked."""
        return self.own_reward is not None

    @property
    def own_reward(self) -> str | None:
        """Where the reward comes from, in words, if no judger is asked."""
        return None

    @property
    def call_limit(self) -> int | None:
        """The most model calls of a rollout, if that is known."""
        return None

    @property
    def chain_choice(self) -> str:
        """Which chains are trained: one of TRAINED, or the import path of the user's function. A kind that leaves the
        choice to the user has it in its setting `train`."""
        return "all"

    @property
    def own_code(self) -> str | None:
        """The import path of the agent, if the user wrote it."""
        return None

    def needs(self) -> Iterator[Need]:
        if self.served:
            yield Need(Outside.EXTRA, ("kind",), "serve")
        yield from code_if_own("train", self.chain_choice)

    def problems(self) -> Iterator[Problem]:
        if self.chain_choice not in TRAINED and ":" not in self.chain_choice:
            remedy = suggest(self.chain_choice, TRAINED, "write file.py:name for a function of yours; known choices")
            yield Problem(("train",), f"there is no choice of chains {self.chain_choice!r}", remedy)


class OwnAgent(AgentKind):
    """An agent that the user wrote, made or called with `args`. `train` is one of TRAINED, or the import path of the
    user's function."""

    kind: str
    path: Text
    judger: Text
    args: dict[str, Any] = Field(default_factory=dict)
    train: Text = "all"
    on_agent_error: OnAgentError = "fail"

    @property
    def chain_choice(self) -> str:
        return self.train

    @property
    def own_code(self) -> str:
        return self.path

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.CODE, ("path",), self.path)
        yield from super().needs()


class SingleTurnAgent(AgentKind):
    """Asks the model once and judges its answer."""

    resumable = True

    kind: Literal["single_turn"] = "single_turn"
    judger: Text
    system: str | None = None
    on_agent_error: OnAgentError = "fail"

    @property
    def call_limit(self) -> int:
        return 1


class PythonAgent(OwnAgent):
    """The user's own loop."""

    resumable = None

    kind: Literal["python"] = "python"


class ToolAgent(AgentKind):
    """Gives the model tools, and asks again with their results until it answers without a call, or a budget is spent.
    The limit of one reply is `max_new_tokens`, as for every agent."""

    kind: Literal["tool"] = "tool"
    judger: Text
    tools: FromYaml[tuple[ToolConfig, ...]]
    system: str | None = None
    parallel: bool = True
    max_turns: Count = 8
    max_tokens: Count | None = None
    max_seconds: Positive | None = None
    turn_seconds: Positive | None = None
    on_agent_error: OnAgentError = "fail"

    @property
    def call_limit(self) -> int:
        return self.max_turns

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not self.tools:
            yield Problem(("tools",), "has no tools", "name at least one, or use kind: single_turn")

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.max_seconds and (self.turn_seconds or 0) >= self.max_seconds:
            yield ("turn_seconds",), "agent.max_seconds ends the agent before"

    def unrepeatable(self) -> Iterator[tuple[KeyPath, str]]:
        for name in ("max_seconds", "turn_seconds"):
            if getattr(self, name) is not None:
                yield (name,), "remove it, or limit turns and tokens instead"
        if any(tool.answers_vary for tool in self.tools):
            yield ("tools",), "see to it that the server answers the same each time"


class CallableAgent(OwnAgent):
    """The user's own function, called with a task, a base URL, a key and `args`; it talks to the model over HTTP."""

    served = True

    kind: Literal["callable"] = "callable"
    max_tokens: Count | None = None


OWN_REWARD = "program"
"""The judger of programs whose reward is read from their folder."""


class RemoteAgent(AgentKind):
    """A program behind the gateway, started for each rollout by `runner`, or by one of several `runners`, chosen by
    their weights. `max_seconds` counts from its first model call. Its reward comes from `reward`, or from a judger."""

    served = True
    is_program = True

    kind: Literal["remote"] = "remote"
    runner: RunnerConfig | None = None
    runners: FromYaml[tuple[RunnerConfig, ...]] = ()
    judger: Text = OWN_REWARD
    reward: ProgramReward | None = None
    max_seconds: Positive | None = None
    max_tokens: Count | None = None
    train: Text = "all"
    on_agent_error: OnAgentError = "fail"

    @property
    def chain_choice(self) -> str:
        return self.train

    @property
    def own_reward(self) -> str | None:
        if self.judger != OWN_REWARD:
            return None
        by_runners = all(one.brings_reward for one in self.all_runners)
        if self.all_runners and by_runners:
            return "reward from the task's verifier"
        return None if self.reward is None else self.reward.label

    @property
    def all_runners(self) -> tuple[RunnerConfig, ...]:
        return self.runners if self.runner is None else (self.runner, *self.runners)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not self.all_runners:
            yield Problem(("runner",), "is missing", "say how the program is started: {kind: command, command: [...]}")
        elif self.runner is not None and self.runners:
            yield Problem(("runner",), "is given, and so is runners", "put all of them into runners")
        names = [one.shown_name for one in self.all_runners]
        for name in sorted({name for name in names if names.count(name) > 1}):
            remedy = "give each its own name: the rollouts tell by it which of them ran"
            yield Problem(("runners",), f"has several that are named {name!r}", remedy)
        by_runners = [one.brings_reward for one in self.all_runners]
        if self.judger == OWN_REWARD and self.reward is None and not (by_runners and all(by_runners)):
            remedy = "say where the reward comes from (file, exit_code or verifier), or name a judger"
            yield Problem(("reward",), "is missing, and no judger is named", remedy)

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.judger != OWN_REWARD:
            yield ("reward",), f"the judger {self.judger} scores the program"
        elif self.all_runners and all(one.brings_reward for one in self.all_runners):
            yield ("reward",), "the tasks' own verifiers give the reward"


AgentConfig = Annotated[
    SingleTurnAgent | PythonAgent | ToolAgent | CallableAgent | RemoteAgent, Field(discriminator="kind")
]


class SamplingOverrides(Section):
    """Sampling settings of one task set. None means the setting of `rollout`."""

    temperature: Positive | None = None
    max_new_tokens: Count | None = None
    top_k: CountOrZero | None = None
    top_p: Share | None = None
    stop: FromYaml[tuple[str, ...]] | None = None


FILTERS = ("none", "no_signal")
"""Which groups are trained: all of them, or those whose members differ."""


class TaskSetConfig(Section):
    """A named source of tasks with its own agent, judger and sampling. `filter` and `produce` None mean the run's
    `produce.filter` and `produce.kind`."""

    name: Text
    data: DataConfig
    agent: AgentConfig
    weight: Positive = 1.0
    sampling: SamplingOverrides = SamplingOverrides()
    filter: Text | None = None
    produce: FromYaml[ProduceKind] | None = None

    def needs(self) -> Iterator[Need]:
        yield from code_if_own("filter", self.filter)
