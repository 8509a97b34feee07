"""Protocols only: what one room may ask of another. Methods here have no body, and nothing here imports a room."""

from loopwright.ports.agent_loop import AgentLoop, Policy, Reply
from loopwright.ports.buffer import ReplayBuffer, Started
from loopwright.ports.engine import Engine, Lockstep, OnPart, StreamingEngine
from loopwright.ports.judger import GroupJudger, Judger
from loopwright.ports.learner import Learner, StepReport
from loopwright.ports.renderer import Renderer, StreamParser
from loopwright.ports.sampler import Sampler, TaskSource
from loopwright.ports.sessions import Endpoint, ServedPolicy
from loopwright.ports.storage import GroupRow, HeldGroup, MemberRow, ResumePlan, StalePolicy, Storage
from loopwright.ports.tracker import Tracker
from loopwright.ports.weights import WeightPublisher
from loopwright.types import PauseMode

__all__ = [
    "AgentLoop",
    "Endpoint",
    "Engine",
    "GroupJudger",
    "GroupRow",
    "HeldGroup",
    "Judger",
    "Learner",
    "Lockstep",
    "MemberRow",
    "OnPart",
    "PauseMode",
    "Policy",
    "Renderer",
    "ReplayBuffer",
    "Reply",
    "ResumePlan",
    "Sampler",
    "ServedPolicy",
    "StalePolicy",
    "Started",
    "StepReport",
    "Storage",
    "StreamParser",
    "StreamingEngine",
    "TaskSource",
    "Tracker",
    "WeightPublisher",
]
