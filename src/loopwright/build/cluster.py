"""What of a run is on actors, and the cluster that it needs for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.cluster.folder import remove_leftovers
from loopwright.cluster.local_node import declares_too_much, local_node
from loopwright.cluster.nodes import ClusterNode
from loopwright.cluster.plan import Plan, make_plan
from loopwright.cluster.plan_text import totals
from loopwright.config import Loaded, RunConfig, TaskSetConfig
from loopwright.config.extras import require
from loopwright.config.judgers import made_of
from loopwright.config.placement import PlacedSection, Strategy
from loopwright.config.roles import Role, RoleKind
from loopwright.types import Split

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

log = logging.getLogger("loopwright")

NOT_THE_AGENT = frozenset({"judger", "on_agent_error", "train"})
"""Settings of an agent's section that its actors need not have in common: they are about what happens afterwards."""


@dataclass(frozen=True, slots=True)
class LoopRole:
    """The actors of one agent, and the task sets for which it works: an evaluation with the same agent uses the same
    actors."""

    role: Role
    task_sets: tuple[tuple[Split, str], ...]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A plan, with everything that a run has on actors, and the nodes that it was made for."""

    plan: Plan
    roles: Sequence[Role]
    nodes: Sequence[ClusterNode]

    def lines(self) -> Iterator[str]:
        yield from self.plan.lines()
        yield totals(self.roles, self.nodes)


@asynccontextmanager
async def open_run_cluster(loaded: Loaded, path: Path) -> AsyncIterator[Cluster | None]:
    """The cluster of the run in the folder `path`. None if nothing of the run is on actors. What a killed process of
    the run has left of its own cluster is removed, also if this one needs none."""
    config = loaded.config
    await asyncio.to_thread(remove_leftovers, path)
    roles = roles_of(config)
    if not roles:
        yield None
        return
    require("ray", "num_actors")
    from loopwright.cluster.opening import open_cluster

    if config.cluster.address is None:
        # To start a cluster takes seconds. Whether it will have room is known before.
        local_plan(config)
    if (warning := declares_too_much(config.cluster.num_cpus)) is not None:
        log.warning("%s", warning)
    async with open_cluster(config.cluster, path) as cluster, cluster.reserved(roles):
        yield cluster


def local_plan(config: RunConfig) -> RunPlan:
    """Who goes where on a cluster that the run starts on this machine. Raises ConfigError if there is no room."""
    roles, nodes = roles_of(config), [local_node(config.cluster.num_cpus)]
    return RunPlan(make_plan(roles, nodes), roles, nodes)


async def plan_run(loaded: Loaded) -> RunPlan:
    """Who goes where. Nothing is started: a cluster that runs is asked, and one that would be started is imagined.
    Raises ConfigError if there is no room."""
    config = loaded.config
    roles = roles_of(config)
    if config.cluster.address is None or not roles:
        return local_plan(config)
    require("ray", "cluster.address")
    from loopwright.cluster.opening import open_cluster

    async with open_cluster(config.cluster, Path(config.trainer.run_dir)):
        from loopwright.cluster.groups import live_plan

        plan, nodes = await live_plan(roles)
    return RunPlan(plan, roles, nodes)


def roles_of(config: RunConfig) -> list[Role]:
    """Everything that the run has on actors."""
    named = {task_set.agent.judger for _, task_set in config.all_task_sets()}
    used = named | made_of(named, config.judgers)
    judgers = [role for name in config.judgers if name in used and (role := judger_role(config, name)) is not None]
    single = [role for role in (engine_role(config), gateway_role(config)) if role is not None]
    ranks = [rank_role(config)] if config.learner.is_on_actors else []
    return [*ranks, *(one.role for one in loop_roles(config)), *judgers, *single]


def loop_roles(config: RunConfig) -> list[LoopRole]:
    """Every task set of the training has actors of its own. Those of the evaluation come after them, and use actors
    that are there for the same agent."""
    roles: list[list[tuple[Split, TaskSetConfig]]] = []
    alike: dict[str, list[tuple[Split, TaskSetConfig]]] = {}
    for place, task_set in config.all_task_sets():
        if task_set.agent.num_actors:
            split = Split.EVAL if place[0] == "eval" else Split.TRAIN
            agent = task_set.agent.model_dump_json(exclude=set(NOT_THE_AGENT))
            if split is Split.EVAL and agent in alike:
                alike[agent].append((split, task_set))
            else:
                roles.append([(split, task_set)])
                alike.setdefault(agent, roles[-1])
    named: dict[str, LoopRole] = {}
    for users in roles:
        # A task set of the evaluation may have the name of one of the training, and that one any name.
        split, first = users[0]
        name = first.name if split is Split.TRAIN else f"eval-{first.name}"
        while name in named:
            name = f"eval-{name}"
        named[name] = _loop_role(config, name, users)
    return list(named.values())


def judger_role(config: RunConfig, name: str) -> Role | None:
    """The actors of a judger. None if it is here."""
    judger, cluster = config.judgers.get(name), config.cluster
    if judger is None or judger.expects_reward:
        return None
    return _role(judger, RoleKind.JUDGERS, name, cluster.strategy.judgers, cluster.labels.judgers)


def rank_role(config: RunConfig) -> Role:
    """The actors of the learner's ranks: one room for all of them, or none."""
    learner, cluster = config.learner, config.cluster
    cpus, gpus, strategy = learner.num_cpus_per_rank, learner.num_gpus_per_rank, cluster.strategy.ranks
    return Role(RoleKind.RANKS, "learner", learner.ranks, cpus, gpus, strategy=strategy, labels=cluster.labels.ranks)


def engine_role(config: RunConfig) -> Role | None:
    engine, cluster = config.rollout.engine, config.cluster
    if not isinstance(engine, PlacedSection):
        return None
    strategy, labels = cluster.strategy.engines, cluster.labels.engines
    return _role(engine, RoleKind.ENGINES, engine.kind, strategy, labels, config.rollout.nodes)


def gateway_role(config: RunConfig) -> Role | None:
    """The actor of the gateway. None if it is here, or if no agent talks to it."""
    if not any(task_set.agent.served for _, task_set in config.all_task_sets()):
        return None
    return _role(config.gateway, RoleKind.GATEWAY, "gateway", Strategy.PACK, config.cluster.labels.gateway)


def _loop_role(config: RunConfig, name: str, users: Sequence[tuple[Split, TaskSetConfig]]) -> LoopRole:
    (_, first), cluster = users[0], config.cluster
    role = _role(first.agent, RoleKind.LOOPS, name, cluster.strategy.loops, cluster.labels.loops)
    if role is None:
        raise RuntimeError(f"the agent of {first.name} is not on actors")
    return LoopRole(role, tuple((split, task_set.name) for split, task_set in users))


def _role(
    placed: PlacedSection,
    kind: RoleKind,
    name: str,
    strategy: Strategy,
    labels: Mapping[str, str],
    nodes: int | None = None,
) -> Role | None:
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
        labels,
    )
