"""The agents of a run, made from its config. Nothing here imports torch, because actors make agents too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from loopwright.agents import AgentSetup, is_resumable, make_agent
from loopwright.build.choices import make_chain_choice
from loopwright.build.programs import program_host
from loopwright.config import Loaded, RunConfig, TaskSetConfig
from loopwright.types import Split

TaskSetPlace = tuple[Split, str]
"""A task set: its name alone may be used by training and by evaluation."""
Agents = Mapping[TaskSetPlace, AgentSetup]


def make_agents(loaded: Loaded, wanted: Callable[[TaskSetPlace], bool] = lambda place: True) -> Agents:
    """The agents of the task sets that are `wanted`. Evaluation needs no choice of chains, because nothing of it is
    trained."""
    config = loaded.config
    train = {
        place: replace(_agent_setup(loaded, one), train=make_chain_choice(loaded, one))
        for one in config.task_sets
        if wanted(place := (Split.TRAIN, one.name))
    }
    evaluated = config.eval.task_sets if config.eval else ()
    return {
        **train,
        **{place: _agent_setup(loaded, one) for one in evaluated if wanted(place := (Split.EVAL, one.name))},
    }


async def open_agents(agents: Agents, stack: AsyncExitStack) -> None:
    """Open what the agents hold, such as tool servers, until the stack ends."""
    used: list[object] = [part for agent in agents.values() for part in (agent.loop, agent.train)]
    for part in used:
        if isinstance(part, AbstractAsyncContextManager):
            await stack.enter_async_context(part)


def worker_silence(config: RunConfig) -> float:
    """For how many seconds the process of an agent may be silent. A lost one must be noticed before the watchdog ends
    the run as stalled."""
    silence, stall = config.rollout.worker_silence_seconds, config.trainer.stall_seconds
    return silence if silence < stall else stall / 2


def _agent_setup(loaded: Loaded, described: TaskSetConfig) -> AgentSetup:
    loop = make_agent(described.agent, program_host(loaded), loaded.objects)
    return AgentSetup(
        loop,
        keeps_time=described.agent.is_program,
        resumable=is_resumable(described.agent, loop),
        served=described.agent.served,
        on_agent_error=described.agent.on_agent_error,
    )
