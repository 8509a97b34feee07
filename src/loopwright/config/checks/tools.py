"""Agents with tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopwright.config.checks.idle import Idle
from loopwright.config.problems import KeyPath, Problem
from loopwright.config.schema import RunConfig
from loopwright.config.task_sets import ToolAgent
from loopwright.config.tools import McpToolsConfig


def _longer_than_the_agent(name: str) -> Any:
    return lambda config, agent: (getattr(agent, name) or 0) >= config.produce.agent_timeout_seconds


IDLE = tuple(
    rule
    for sets in ("task_sets", "eval.task_sets")
    for rule in (
        Idle(
            f"{sets}.*.agent.max_seconds",
            _longer_than_the_agent("max_seconds"),
            "produce.agent_timeout_seconds ends the agent before",
        ),
        Idle(
            f"{sets}.*.agent.turn_seconds",
            lambda _, agent: bool(agent.max_seconds and (agent.turn_seconds or 0) >= agent.max_seconds),
            "agent.max_seconds ends the agent before",
        ),
        Idle(
            f"{sets}.*.agent.max_tokens",
            lambda config, agent: _cannot_be_reached(config, agent),
            "so many turns of max_new_tokens cannot reach it",
        ),
    )
)


def problems(config: RunConfig) -> Iterator[Problem]:
    for place, task_set in config.all_task_sets():
        if isinstance(task_set.agent, ToolAgent) and not task_set.agent.tools:
            remedy = "name at least one, or use kind: single_turn"
            yield Problem((*place, "agent", "tools"), "has no tools", remedy)


def warnings(config: RunConfig) -> Iterator[Problem]:
    """A clock and a server of somebody's answer differently each time."""
    for place, task_set in config.all_task_sets() if config.trainer.deterministic else ():
        agent = task_set.agent
        if not isinstance(agent, ToolAgent):
            continue
        for name in ("max_seconds", "turn_seconds"):
            if getattr(agent, name) is not None:
                yield _not_repeatable((*place, "agent", name), "remove it, or limit turns and tokens instead")
        if any(isinstance(tool, McpToolsConfig) for tool in agent.tools):
            remedy = "see to it that the server answers the same each time"
            yield _not_repeatable((*place, "agent", "tools"), remedy)


def _not_repeatable(path: KeyPath, remedy: str) -> Problem:
    also = (("trainer", "deterministic"),)
    return Problem(path, "may differ between runs, although trainer.deterministic is set", remedy, also=also)


def _cannot_be_reached(config: RunConfig, agent: Any) -> bool:
    """Other agents have no limit of turns."""
    return isinstance(agent, ToolAgent) and (agent.max_tokens or 0) >= agent.max_turns * _longest_reply(config)


def _longest_reply(config: RunConfig) -> int:
    own = (task_set.sampling.max_new_tokens for _, task_set in config.all_task_sets())
    return max([config.rollout.max_new_tokens, *(length for length in own if length is not None)])
