"""Agents: their budgets, and whether their runs can be repeated. These checks ask the agent's config, and never its
kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopwright.config.addresses import host_of, is_loopback
from loopwright.config.base import sections
from loopwright.config.checks.idle import Idle
from loopwright.config.engines import DoorConfig
from loopwright.config.problems import Problem
from loopwright.config.programs import ServerRunnerConfig
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
        for name in ("thinking", "host", "port", "advertise_url", "url", "num_actors")
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
    yield from _door_out_of_reach(config)
    yield from _gateway_out_of_reach(config)
    yield from _unrepeatable(config)


def _door_out_of_reach(config: RunConfig) -> Iterator[Problem]:
    """A gateway elsewhere samples through the run's door, which it has to reach unless the run dials it."""
    url, door = config.gateway.url, config.rollout.door or DoorConfig()
    away = url is not None and not config.gateway.relay and not is_loopback(host_of(url) or "localhost")
    if away and door.advertise_url is None and is_loopback(door.host):
        yield Problem(
            ("gateway", "url"),
            "may be on another machine, and the run's door is at the loopback, where only this machine reaches it",
            "set gateway.relay, and start that gateway with --relay; or set rollout.door.host and "
            "rollout.door.advertise_url",
            also=(("rollout", "door"),),
        )


def _gateway_out_of_reach(config: RunConfig) -> Iterator[Problem]:
    """Programs on agent servers talk to the run's gateway."""
    gateway = config.gateway
    near = gateway.url is None and gateway.advertise_url is None and is_loopback(gateway.host)
    for place, section in sections(config) if near else ():
        if isinstance(section, ServerRunnerConfig) and not all(is_loopback(host_of(url) or "") for url in section.urls):
            yield Problem(
                (*place, "urls"),
                "may be on other machines, and only this machine reaches the run's gateway: it is at the loopback",
                "set gateway.host and gateway.advertise_url",
                also=(("gateway",),),
            )


def _unrepeatable(config: RunConfig) -> Iterator[Problem]:
    """Settings that make runs differ: a clock, or somebody's server, answers differently each time."""
    for place, section in sections(config) if config.trainer.deterministic else ():
        for setting, remedy in section.unrepeatable():
            yield Problem(
                (*place, *setting),
                "may differ between runs, although trainer.deterministic is set",
                remedy,
                also=(("trainer", "deterministic"),),
            )
