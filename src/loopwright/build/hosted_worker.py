"""Agents on actors: the part that an actor holds, and the actors of a run's agents.

An actor loads the user's agent when it starts, so a mistake in it is found before anything is trained. It reaches the
model later, when the engines run: a request says where they are. It has the tokenizer and the renderer, but no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.agents import EnginePolicies, LocalWorker
from loopwright.agents.runners.marks import VARIABLE
from loopwright.build.agents import Agents, TaskSetPlace, make_agents, open_agents, worker_silence
from loopwright.build.cluster import loop_roles
from loopwright.build.gateway import model_behind_door
from loopwright.build.programs import program_host
from loopwright.build.user_files import named_files
from loopwright.cluster.files import hosted, user_files
from loopwright.cluster.worker import GatewayAccess, HostedRollout, LoopCrew, Reach
from loopwright.config import AgentConfig, Loaded, RunConfig
from loopwright.config.base import needs_of
from loopwright.core.environment import child_environment
from loopwright.core.redaction import Redactor
from loopwright.errors import EngineError, WorkerLostError
from loopwright.gateway.remote_policy import RemoteSessionPolicies, join_remote_policies
from loopwright.render.choose import make_renderer
from loopwright.serve.marked_processes import ProcessTable
from loopwright.track.redacting import redacting, redactor_of
from loopwright.types import RolloutRequest, Split

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Connection:
    """The worker of an actor, and its sessions if its agents talk to a gateway."""

    worker: LocalWorker
    sessions: RemoteSessionPolicies | None


class HostedWorker:
    """The agents of some task sets on an actor. `disconnect` closes it."""

    def __init__(self, agents: Agents, redact: Redactor) -> None:
        self._agents = agents
        self._redact = redact
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._closing = AsyncExitStack()

    async def connect(self, reach: Reach) -> None:
        """Reach the model, and the gateway where it is now. Raises EngineError if this cannot be done."""
        await self._connected(reach)

    async def run(self, request: RolloutRequest, reach: Reach) -> HostedRollout:
        try:
            connection = await self._connected(reach)
        except EngineError as error:
            raise WorkerLostError(error.message, remedy=error.remedy) from error
        sessions = connection.sessions
        if sessions is None:
            return HostedRollout.of(await connection.worker.run(request))
        try:
            rollout = await connection.worker.run(request)
        except BaseException:
            # Nobody will store it. The driver hears of its sessions with the next rollout.
            sessions.stored(request.split, request.key)
            raise
        return HostedRollout.of(rollout, sessions.hand_over(request))

    async def disconnect(self) -> None:
        """The engines and the gateway are about to end."""
        async with self._connecting:
            self._connection = None
            await self._closing.aclose()

    async def _connected(self, reach: Reach) -> Connection:
        async with self._connecting:
            if self._connection is None:
                opening = _connection(self._agents, reach, self._redact)
                self._connection = await self._closing.enter_async_context(opening)
        sessions, gateway = self._connection.sessions, reach.gateway
        if sessions is not None and gateway is not None:
            sessions.started_again(gateway.address.url, gateway.starts)
            if gateway.lost is not None:
                sessions.cannot_go_on(gateway.lost)
        return self._connection


@asynccontextmanager
async def hosted_worker(loaded: Loaded, task_sets: Sequence[TaskSetPlace], base: Path) -> AsyncIterator[HostedWorker]:
    """Open the agents of these task sets on an actor, whose copy of the user's files is in `base`."""
    loaded, redact = replace(loaded, base=base), redactor_of(loaded)
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(redact))
        agents = make_agents(loaded, lambda place: place in task_sets)
        await open_agents(agents, stack)
        worker = HostedWorker(agents, redact)
        stack.push_async_callback(worker.disconnect)
        yield worker


@asynccontextmanager
async def _connection(agents: Agents, reach: Reach, redact: Redactor) -> AsyncIterator[Connection]:
    async with AsyncExitStack() as stack:
        engine, tokenizer = await stack.enter_async_context(model_behind_door(reach.model))
        # The door counts the seconds of a call, and the engine here hears how long it was held.
        renderer, held = make_renderer(tokenizer, reach.model.renderer), engine.held_seconds
        policies = EnginePolicies(engine, renderer, reach.model.max_context, held)
        sessions = None
        if reach.gateway is not None and any(agent.served for agent in agents.values()):
            sessions = await stack.enter_async_context(_sessions(reach.gateway, held, redact))
        yield Connection(LocalWorker(agents, policies, sessions), sessions)


@asynccontextmanager
async def _sessions(
    gateway: GatewayAccess, held: Callable[[], float], redact: Redactor
) -> AsyncIterator[RemoteSessionPolicies]:
    async with join_remote_policies(gateway.address, gateway.registration, held=held, redact=redact) as sessions:
        sessions.starts = gateway.starts
        yield sessions


@asynccontextmanager
async def open_loop_crews(loaded: Loaded, cluster: Cluster) -> AsyncIterator[dict[TaskSetPlace, LoopCrew]]:
    """The actors of all agents that the config has on some. Raises what is wrong with an agent."""
    crews: dict[TaskSetPlace, LoopCrew] = {}
    async with AsyncExitStack() as stack:
        for placed in loop_roles(loaded.config):
            agent = _agent(loaded.config, placed.task_sets[0])
            if agent.is_program:
                stack.push_async_callback(_clear_programs, loaded)
            opening = partial(hosted_worker, _part_of(loaded, agent), placed.task_sets)
            what = f"the agent of task set {placed.role.name!r}" + (f" ({agent.own_code})" if agent.own_code else "")
            files = await user_files(loaded.base, named_files(needs_of(agent), loaded.base))
            silence = worker_silence(loaded.config)
            opened = cluster.crew(placed.role, hosted(opening, files, what), what, max_silence=silence)
            crew = await stack.enter_async_context(opened)
            crews |= dict.fromkeys(placed.task_sets, LoopCrew(crew, agent.served))
        yield crews


def _agent(config: RunConfig, place: TaskSetPlace) -> AgentConfig:
    evaluated = config.eval.task_sets if config.eval else ()
    among = config.task_sets if place[0] is Split.TRAIN else evaluated
    return next(one.agent for one in among if one.name == place[1])


def _part_of(loaded: Loaded, agent: AgentConfig) -> Loaded:
    """What an actor gets of the config. Of secrets and of Python objects it gets those of its agent only."""
    names = {need.name for need in needs_of(agent)}
    config = loaded.config
    # Absolute: the current folder of an actor is another one.
    trainer = config.trainer.model_copy(update={"run_dir": str(Path(config.trainer.run_dir).absolute())})
    return replace(
        loaded,
        config=config.model_copy(update={"trainer": trainer}),
        sources={},
        secrets={name: value for name, value in loaded.secrets.items() if name in names},
        objects={name: value for name, value in loaded.objects.items() if name in names},
        environment=child_environment(loaded.environment),
    )


async def _clear_programs(loaded: Loaded) -> None:
    """End the programs of actors on this machine that were killed: they could not do it themselves."""
    await asyncio.to_thread(program_host(loaded).clear_left_behind, ProcessTable(VARIABLE))
