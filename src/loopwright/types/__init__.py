"""Frozen values that flow through the rooms. Standard library and numpy only; no behaviour beyond their own
consistency: an impossible value cannot be built."""

from loopwright.types.choices import (
    Aggregate,
    EvalMode,
    ImportanceKind,
    KlKind,
    Level,
    MetricKind,
    OnAgentError,
    Schedule,
)
from loopwright.types.evaluation import TaskResult
from loopwright.types.group import Group, GroupStatus
from loopwright.types.reward import Failed, FailureCause, Reward, Scored, Unscored
from loopwright.types.rollout import Episode, Rollout, RolloutKey, StopReason, Timing
from loopwright.types.sampling import FinishReason, GenerateRequest, Generation, Sampling
from loopwright.types.task import Message, Task
from loopwright.types.tokens import ChainStart, TokenChain, Turn

__all__ = [
    "Aggregate",
    "ChainStart",
    "Episode",
    "EvalMode",
    "Failed",
    "FailureCause",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "Group",
    "GroupStatus",
    "ImportanceKind",
    "KlKind",
    "Level",
    "Message",
    "MetricKind",
    "OnAgentError",
    "Reward",
    "Rollout",
    "RolloutKey",
    "Sampling",
    "Schedule",
    "Scored",
    "StopReason",
    "Task",
    "TaskResult",
    "Timing",
    "TokenChain",
    "Turn",
    "Unscored",
]
