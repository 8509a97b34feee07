"""Which groups are trained, and which chains of their rollouts."""

from __future__ import annotations

from loopwright.agents import MainChains, UserChoice
from loopwright.config import Loaded, TaskSetConfig
from loopwright.ports import ChainChoice
from loopwright.produce import Filter, NoSignal, UserFilter


def make_filter(loaded: Loaded, task_set: TaskSetConfig) -> Filter | None:
    """Which groups are trained; None: all of them."""
    match task_set.filter or loaded.config.produce.filter:
        case "none":
            return None
        case "no_signal":
            return NoSignal()
        case path:
            return UserFilter(path, loaded.base, loaded.config.produce.filter_timeout_seconds)


def make_chain_choice(loaded: Loaded, task_set: TaskSetConfig) -> ChainChoice | None:
    """Which chains of a rollout are trained; None: all of them."""
    match task_set.agent.chain_choice:
        case "all":
            return None
        case "main":
            return MainChains()
        case path:
            return UserChoice(path, loaded.base, loaded.config.produce.filter_timeout_seconds)
