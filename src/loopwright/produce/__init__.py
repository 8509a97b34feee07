"""How groups are made: the boundary around user code, retries, refills and budgets."""

from loopwright.produce.batch import Batch
from loopwright.produce.failures import FirstFailures
from loopwright.produce.filtering import NO_SIGNAL, Filter, load_filter
from loopwright.produce.judging import score
from loopwright.produce.rollout import RecordingPolicy, run_rollout
from loopwright.produce.runner import Job, Limits, PolicyFactory, RolloutRunner, TaskSetRuntime
from loopwright.produce.sync import ProduceSettings, SyncProducer

__all__ = [
    "NO_SIGNAL",
    "Batch",
    "Filter",
    "FirstFailures",
    "Job",
    "Limits",
    "PolicyFactory",
    "ProduceSettings",
    "RecordingPolicy",
    "RolloutRunner",
    "SyncProducer",
    "TaskSetRuntime",
    "load_filter",
    "run_rollout",
    "score",
]
