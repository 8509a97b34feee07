"""What of a run is on actors, and the cluster that it needs for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.config import Loaded, RunConfig, TaskSetConfig
from loopwright.config.extras import require
from loopwright.config.placement import Placed, Strategy
from loopwright.config.roles import Role, RoleKind
from loopwright.types import Split

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

NOT_THE_AGENT = frozenset({"judger", "on_agent_error", "train"})
"""Settings of an agent's section that its actors need not have in common: they are about what happens afterwards."""


@dataclass(frozen=True, slots=True)
class LoopRole:
    """The actors of one agent, and the task sets for which it works: an evaluation with the same agent uses the same
    actors."""

    role: Role
    task_sets: tuple[tuple[Split, str], ...]


@asynccontextmanager
async def open_run_cluster(loaded: Loaded, path: Path) -> AsyncIterator[Cluster | None]:
    """The cluster of the run in the folder `path`. None if nothing of the run is on actors."""
    if not roles_of(loaded.config):
        yield None
        return
    require("ray", "num_actors")
    from loopwright.cluster.opening import open_cluster

    async with open_cluster(loaded.config.cluster, path) as cluster:
        yield cluster


def roles_of(config: RunConfig) -> list[Role]:
    """Everything that the run has on actors."""
    judgers = [role for name in config.judgers if (role := judger_role(config, name)) is not None]
    single = [role for role in (engine_role(config), gateway_role(config)) if role is not None]
    return [*(one.role for one in loop_roles(config)), *judgers, *single]


def loop_roles(config: RunConfig) -> list[LoopRole]:
    alike: dict[str, list[tuple[Split, TaskSetConfig]]] = {}
    for place, task_set in config.all_task_sets():
        if task_set.agent.num_actors:
            split = Split.EVAL if place[0] == "eval" else Split.TRAIN
            agent = task_set.agent.model_dump_json(exclude=set(NOT_THE_AGENT))
            alike.setdefault(agent, []).append((split, task_set))
    return [_loop_role(config, users) for users in alike.values()]


def judger_role(config: RunConfig, name: str) -> Role | None:
    """The actors of a judger. None if it is here."""
    placed = config.judgers.get(name)
    return None if placed is None else _role(placed, RoleKind.JUDGERS, name, config.cluster.strategy.judgers)


def engine_role(config: RunConfig) -> Role | None:
    engine, strategy = config.rollout.engine, config.cluster.strategy.engines
    placed = engine if isinstance(engine, Placed) else None
    return None if placed is None else _role(placed, RoleKind.ENGINES, engine.kind, strategy, config.rollout.nodes)


def gateway_role(config: RunConfig) -> Role | None:
    return _role(config.gateway, RoleKind.GATEWAY, "gateway", Strategy.PACK)


def _loop_role(config: RunConfig, users: Sequence[tuple[Split, TaskSetConfig]]) -> LoopRole:
    first = users[0][1]
    role = _role(first.agent, RoleKind.LOOPS, first.name, config.cluster.strategy.loops)
    if role is None:
        raise RuntimeError(f"the agent of {first.name} is not on actors")
    return LoopRole(role, tuple((split, task_set.name) for split, task_set in users))


def _role(placed: Placed, kind: RoleKind, name: str, strategy: Strategy, nodes: int | None = None) -> Role | None:
    if not placed.num_actors:
        return None
    return Role(
        kind,
        name,
        placed.num_actors,
        placed.num_cpus_per_actor,
        placed.num_gpus_per_actor,
        placed.memory_per_actor,
        strategy,
        nodes,
    )
