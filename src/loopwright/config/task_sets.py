"""The schema of task sets: where tasks come from, which agent works on them, and who scores it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loopwright.config.base import Count, CountOrZero, FromYaml, Positive, Section, Share, Text
from loopwright.config.data import DataConfig
from loopwright.config.tools import ToolConfig
from loopwright.types import OnAgentError, ProduceKind


class SingleTurnAgent(Section):
    """Asks the model once and judges its answer."""

    kind: Literal["single_turn"] = "single_turn"
    judger: Text
    system: str | None = None
    on_agent_error: OnAgentError = "fail"


TRAINED = ("all", "main")
"""Which chains of a rollout are trained: all of them, or those of its main conversation."""


class PythonAgent(Section):
    """The user's own loop, made with `args`. `train` is one of TRAINED, or the path of the user's function."""

    kind: Literal["python"] = "python"
    path: Text
    judger: Text
    args: dict[str, Any] = Field(default_factory=dict)
    train: Text = "all"
    on_agent_error: OnAgentError = "fail"


class ToolAgent(Section):
    """Gives the model tools, and asks again with their results until it answers without a call, or a budget is spent.
    How long one reply may be is said by `max_new_tokens`, as for every agent."""

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


class CallableAgent(Section):
    """The user's own function, called with a task, a base URL, a key and `args`; it talks to the model over HTTP.
    `train` is as that of `python`."""

    kind: Literal["callable"] = "callable"
    path: Text
    judger: Text
    args: dict[str, Any] = Field(default_factory=dict)
    max_tokens: Count | None = None
    train: Text = "all"
    on_agent_error: OnAgentError = "fail"


AgentConfig = Annotated[SingleTurnAgent | PythonAgent | ToolAgent | CallableAgent, Field(discriminator="kind")]


class SamplingOverrides(Section):
    """What one task set samples differently from `rollout`. None: as `rollout` says."""

    temperature: Positive | None = None
    max_new_tokens: Count | None = None
    top_k: CountOrZero | None = None
    top_p: Share | None = None
    stop: FromYaml[tuple[str, ...]] | None = None


FILTERS = ("none", "no_signal")
"""Which groups are trained: all of them, or those whose members differ."""


class TaskSetConfig(Section):
    """A named source of tasks with its own agent, judger and sampling. What is None is as the run's `produce` says."""

    name: Text
    data: DataConfig
    agent: AgentConfig
    weight: Positive = 1.0
    sampling: SamplingOverrides = SamplingOverrides()
    filter: Text | None = None
    produce: FromYaml[ProduceKind] | None = None
