"""Agents: their budgets, and whether their runs can be repeated. These checks ask the agent's config, and never its
kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopwright.config.base import sections
from loopwright.config.checks.idle import Idle
from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig


def _none_is_served(config: RunConfig, _: object) -> bool:
    return not any(task_set.agent.served for _, task_set in config.all_task_sets())


def _outlasts_the_agent(config: RunConfig, agent: Any) -> bool:
    return (agent.max_seconds or 0) >= config.produce.agent_timeout_seconds


def _cannot_be_reached(config: RunConfig, agent: Any) -> bool:
    calls = agent.call_limit
    return calls is not None and (agent.max_tokens or 0) >= calls * _longest_reply(config)


def _longest_reply(config: RunConfig) -> int:
    own = (task_set.sampling.max_new_tokens for _, task_set in config.all_task_sets())
    return max([config.rollout.max_new_tokens, *(length for length in own if length is not None)])


IDLE = (
    *(
        Idle(f"gateway.{name}", _none_is_served, "no agent talks to the gateway")
        for name in ("thinking", "host", "port", "advertise_url", "url")
    ),
    *(
        rule
        for sets in ("task_sets", "eval.task_sets")
        for rule in (
            Idle(
                f"{sets}.*.agent.max_seconds",
                _outlasts_the_agent,
                "produce.agent_timeout_seconds ends the agent before",
            ),
            Idle(
                f"{sets}.*.agent.max_tokens",
                _cannot_be_reached,
                "so many turns of max_new_tokens cannot reach it",
            ),
        )
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    for place, task_set in config.all_task_sets() if config.trainer.deterministic else ():
        if task_set.agent.served:
            yield Problem(
                (*place, "agent", "kind"),
                f"is {task_set.agent.kind}: when its calls arrive depends on timing, but trainer.deterministic is set",
                "switch trainer.deterministic off",
                also=(("trainer", "deterministic"),),
            )


def warnings(config: RunConfig) -> Iterator[Problem]:
    """Settings that make runs differ: a clock, or somebody's server, answers differently each time."""
    for place, section in sections(config) if config.trainer.deterministic else ():
        for setting, remedy in section.unrepeatable():
            yield Problem(
                (*place, *setting),
                "may differ between runs, although trainer.deterministic is set",
                remedy,
                also=(("trainer", "deterministic"),),
            )
