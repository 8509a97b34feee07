"""How groups are made: the boundary around user code, retries, refills and budgets, and who starts what when."""

from loopwright.produce.batch import Batch
from loopwright.produce.chain_choice import ChainChoice, MainChains, UserChoice
from loopwright.produce.failures import FirstFailures
from loopwright.produce.filtering import Filter, NoSignal, UserFilter
from loopwright.produce.jobs import Job, Limits, PolicyFactory, TaskSetRuntime
from loopwright.produce.judging import score
from loopwright.produce.manager import AgentLoopManager, ManagerState
from loopwright.produce.rollout import RecordingPolicy, run_rollout
from loopwright.produce.runner import RolloutRunner
from loopwright.produce.settings import ProduceSettings

__all__ = [
    "AgentLoopManager",
    "Batch",
    "ChainChoice",
    "Filter",
    "FirstFailures",
    "Job",
    "Limits",
    "MainChains",
    "ManagerState",
    "NoSignal",
    "PolicyFactory",
    "ProduceSettings",
    "RecordingPolicy",
    "RolloutRunner",
    "TaskSetRuntime",
    "UserChoice",
    "UserFilter",
    "run_rollout",
    "score",
]
