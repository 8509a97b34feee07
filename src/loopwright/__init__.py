"""Loopwright: reinforcement learning for the LLM agent you already have.

`import loopwright` is light: it loads neither torch nor transformers, which `open_run` does. A loss of your own needs
torch, and imports from `loopwright.learn`.
"""

import importlib
import typing

from loopwright.core.advantage import Scores, teaches_nothing
from loopwright.errors import LoopwrightError
from loopwright.ports import AgentLoop, Judger, Policy, Reply, TaskSource
from loopwright.types import (
    Episode,
    Group,
    Level,
    Message,
    RecordedChain,
    Rollout,
    Scored,
    Task,
    TaskResult,
    TokenChain,
)

if typing.TYPE_CHECKING:
    from loopwright import sync
    from loopwright.agents.trials.client import AgentServer
    from loopwright.api import open_run
    from loopwright.build import Run
    from loopwright.trainers.step import Step

__version__ = "0.2.0"

_ON_DEMAND = {
    "AgentServer": "agents.trials.client",
    "open_run": "api",
    "Run": "build",
    "Step": "trainers.step",
}
"""Names that are imported when they are asked for, and their modules: these load the config's packages, or torch."""

__all__ = [
    "AgentLoop",
    "AgentServer",
    "Episode",
    "Group",
    "Judger",
    "Level",
    "LoopwrightError",
    "Message",
    "Policy",
    "RecordedChain",
    "Reply",
    "Rollout",
    "Run",
    "Scored",
    "Scores",
    "Step",
    "Task",
    "TaskResult",
    "TaskSource",
    "TokenChain",
    "__version__",
    "open_run",
    "sync",
    "teaches_nothing",
]


def __getattr__(name: str) -> typing.Any:
    if name == "sync":
        return importlib.import_module("loopwright.sync")
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"loopwright.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module 'loopwright' has no attribute {name!r}")
