"""Loopwright: reinforcement learning for the LLM agent you already have.

`import loopwright` is light: it loads neither torch nor transformers.
"""

from loopwright.errors import LoopwrightError
from loopwright.ports import AgentLoop, Judger, Policy, Reply, TaskSource
from loopwright.types import Episode, Group, Message, Rollout, Scored, Task, TaskResult, TokenChain

__version__ = "0.1.0"

__all__ = [
    "AgentLoop",
    "Episode",
    "Group",
    "Judger",
    "LoopwrightError",
    "Message",
    "Policy",
    "Reply",
    "Rollout",
    "Scored",
    "Task",
    "TaskResult",
    "TaskSource",
    "TokenChain",
    "__version__",
]
