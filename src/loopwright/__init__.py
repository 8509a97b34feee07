"""Loopwright: reinforcement learning for the LLM agent you already have.

`import loopwright` is light: it loads neither torch nor transformers. A loss of your own needs torch, and imports from
`loopwright.learn`.
"""

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

__version__ = "0.2.0"

__all__ = [
    "AgentLoop",
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
    "Scored",
    "Scores",
    "Task",
    "TaskResult",
    "TaskSource",
    "TokenChain",
    "__version__",
    "teaches_nothing",
]
