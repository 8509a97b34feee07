"""Protocols only: what one room may ask of another. Methods here have no body, and nothing here imports a room."""

from loopwright.ports.agent_loop import AgentLoop, AgentResult, Policy, Reply
from loopwright.ports.buffer import ReplayBuffer, StartedGroup
from loopwright.ports.engine import Engine, Lockstep, ModelClient, OnPart, StreamingEngine
from loopwright.ports.exchanges import Exchanges, ServerAnswer, Waiting
from loopwright.ports.judger import Judger
from loopwright.ports.learner import Learner, StepReport
from loopwright.ports.policy import ChainChoice, PolicyMaker, RecordingPolicy
from loopwright.ports.renderer import Renderer, StreamParser
from loopwright.ports.runner import PreparedProgram, ProgramRunner
from loopwright.ports.sampler import Sampler, TaskSource
from loopwright.ports.sessions import Endpoint, ServedPolicy, SessionTimes
from loopwright.ports.storage import GroupRow, HeldGroup, MemberRow, ResumePlan, StalePolicy, Storage
from loopwright.ports.tracker import Tracker
from loopwright.ports.weights import WeightPublisher, WeightSink
from loopwright.ports.worker import RolloutWorker
from loopwright.types import PauseMode

__all__ = [
    "AgentLoop",
    "AgentResult",
    "ChainChoice",
    "Endpoint",
    "Engine",
    "Exchanges",
    "GroupRow",
    "HeldGroup",
    "Judger",
    "Learner",
    "Lockstep",
    "MemberRow",
    "ModelClient",
    "OnPart",
    "PauseMode",
    "Policy",
    "PolicyMaker",
    "PreparedProgram",
    "ProgramRunner",
    "RecordingPolicy",
    "Renderer",
    "ReplayBuffer",
    "Reply",
    "ResumePlan",
    "RolloutWorker",
    "Sampler",
    "ServedPolicy",
    "ServerAnswer",
    "SessionTimes",
    "StalePolicy",
    "StartedGroup",
    "StepReport",
    "Storage",
    "StreamParser",
    "StreamingEngine",
    "TaskSource",
    "Tracker",
    "Waiting",
    "WeightPublisher",
    "WeightSink",
]
