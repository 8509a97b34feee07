"""Agents that talk to the gateway."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.extras import missing
from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig
from loopwright.config.task_sets import CallableAgent

IDLE = (
    Idle(
        "gateway.thinking",
        lambda config, _: not any(isinstance(task_set.agent, CallableAgent) for _, task_set in config.all_task_sets()),
        "no agent of kind callable talks to the gateway",
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    for place, task_set in config.all_task_sets():
        if not isinstance(task_set.agent, CallableAgent):
            continue
        path = (*place, "agent", "kind")
        if config.trainer.deterministic:
            yield Problem(
                path,
                "is callable: when its calls arrive depends on timing, but trainer.deterministic is set",
                "switch trainer.deterministic off",
                also=(("trainer", "deterministic"),),
            )
        if extra := missing("callable"):
            yield Problem(path, f"is callable, which needs the package {extra.package}", extra.remedy)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from ()
