"""Frozen values that the rooms pass to one another. They need the standard library and numpy only. They have no
behaviour except to check themselves: a value that cannot be true cannot be built."""

from loopwright.types.choices import (
    Aggregate,
    BufferKind,
    EvalMode,
    ImportanceKind,
    Isolation,
    KlKind,
    Level,
    MetricKind,
    OnAgentError,
    PauseMode,
    ProduceKind,
    ProgramInput,
    Schedule,
    Stale,
    SyncKind,
    TailBatch,
    Thinking,
    ToolScope,
    TrainerKind,
)
from loopwright.types.drift import EpisodeDrift, TokenDiff
from loopwright.types.evaluation import TaskResult
from loopwright.types.group import Group, GroupStatus
from loopwright.types.parsed import (
    ContentDelta,
    Delta,
    Parsed,
    ReasoningDelta,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    parsed_of,
)
from loopwright.types.program import ProgramOutput
from loopwright.types.recorded_chain import RecordedChain
from loopwright.types.reward import Failed, FailureCause, Reward, Scored, Unscored
from loopwright.types.rollout import Episode, Rollout, RolloutKey, StopReason, Timing
from loopwright.types.rollout_request import RolloutRequest, Split
from loopwright.types.sampling import NOTHING_YET, FinishReason, GenerateRequest, Generation, Sampling
from loopwright.types.task import Message, Task
from loopwright.types.tokens import ChainStart, TokenChain, Turn
from loopwright.types.weights import TensorSpec, WeightFile

__all__ = [
    "NOTHING_YET",
    "Aggregate",
    "BufferKind",
    "ChainStart",
    "ContentDelta",
    "Delta",
    "Episode",
    "EpisodeDrift",
    "EvalMode",
    "Failed",
    "FailureCause",
    "FinishReason",
    "GenerateRequest",
    "Generation",
    "Group",
    "GroupStatus",
    "ImportanceKind",
    "Isolation",
    "KlKind",
    "Level",
    "Message",
    "MetricKind",
    "OnAgentError",
    "Parsed",
    "PauseMode",
    "ProduceKind",
    "ProgramInput",
    "ProgramOutput",
    "ReasoningDelta",
    "RecordedChain",
    "Reward",
    "Rollout",
    "RolloutKey",
    "RolloutRequest",
    "Sampling",
    "Schedule",
    "Scored",
    "Split",
    "Stale",
    "StopReason",
    "SyncKind",
    "TailBatch",
    "Task",
    "TaskResult",
    "TensorSpec",
    "Thinking",
    "Timing",
    "TokenChain",
    "TokenDiff",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolScope",
    "TrainerKind",
    "Turn",
    "Unscored",
    "WeightFile",
    "parsed_of",
]
