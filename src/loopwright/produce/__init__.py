"""How groups are made: attempts, judging, refills and budgets, and which group starts when.

A rollout goes through manager, scheduler, group filler, rollout runner and worker. This room knows agents and engines
only through ports.
"""

from loopwright.produce.budgets import FirstFailures
from loopwright.produce.filtering import Filter, NoSignal, UserFilter
from loopwright.produce.judging import judged
from loopwright.produce.manager import AgentLoopManager, ManagerState
from loopwright.produce.metrics import Batch
from loopwright.produce.rollouts import Job, RolloutRunner
from loopwright.produce.settings import Limits, ProduceSettings, TaskSetRuntime

__all__ = [
    "AgentLoopManager",
    "Batch",
    "Filter",
    "FirstFailures",
    "Job",
    "Limits",
    "ManagerState",
    "NoSignal",
    "ProduceSettings",
    "RolloutRunner",
    "TaskSetRuntime",
    "UserFilter",
    "judged",
]
