"""Room on the live cluster: which nodes it has, and one placement group of Ray per role, so that no actor waits for a
place that nobody has.

The groups are removed when the run ends, whatever happens. If a node is lost, Ray gives its bundles another place as
soon as there is one, and the actors of these bundles wait until then. Others stay where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from loopwright.cluster.nodes import Bundle, ClusterNode, Resources, bundles_of
from loopwright.cluster.plan import Plan, make_plan
from loopwright.cluster.plan_text import resources_text
from loopwright.config.placement import Strategy
from loopwright.config.roles import Role
from loopwright.errors import ConfigError

SETTLE_SECONDS = 10.0
"""How long what others have just left may still count as in use."""
POLL_SECONDS = 0.5
GROUP_SECONDS = 60.0
"""How long Ray may take to reserve what is free."""
NODE_ID = "ray.io/node-id"
"""A label that Ray gives every node."""


@dataclass(frozen=True, slots=True)
class ReservedRoom:
    """The reserved room of a role. `actors_per_bundle` of them share a bundle."""

    handle: Any
    actors_per_bundle: int

    def options(self, number: int) -> Mapping[str, Any]:
        """Ray's options that put the actor with this number into its bundle."""
        index = number // self.actors_per_bundle
        place = PlacementGroupSchedulingStrategy(placement_group=self.handle, placement_group_bundle_index=index)
        return {"scheduling_strategy": place}


def live_nodes() -> list[ClusterNode]:
    """The nodes that are alive, with what is free on each."""
    # Ray has no public function for this. A resource that is used up is absent.
    free = ray._private.state.available_resources_per_node()
    driver = ray.get_runtime_context().get_node_id()
    return [
        ClusterNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            _resources(node["Resources"]),
            _resources(free.get(node["NodeID"], {})),
            is_driver=node["NodeID"] == driver,
            labels=node.get("Labels") or {},
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


async def live_plan(roles: Sequence[Role]) -> tuple[Plan, list[ClusterNode]]:
    """Who goes where on the live cluster. Raises ConfigError if there is no room."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_SECONDS
    while True:
        nodes = await asyncio.to_thread(live_nodes)
        try:
            return make_plan(roles, nodes), nodes
        except ConfigError:
            # What others have just left is free a moment later. What the cluster does not have never is.
            if loop.time() > deadline or not _fits_if_empty(roles, nodes):
                raise
        await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def reserved(plan: Plan) -> AsyncIterator[Mapping[str, ReservedRoom]]:
    """Reserve room for all roles of the plan, by their keys, while the block runs."""
    with ExitStack() as stack:
        groups: dict[str, ReservedRoom] = {}
        driver = ray.get_runtime_context().get_node_id()
        for role in plan.roles:
            bundles = bundles_of(role)
            handle = placement_group(
                [_bundle(bundle) for bundle in bundles],
                strategy=_strategy(role),
                bundle_label_selector=[_selector(role, driver)] * len(bundles),
            )
            stack.callback(_remove, handle)
            await _ready(handle, role)
            groups[role.key] = ReservedRoom(handle, bundles[0].count)
        yield groups


async def _ready(handle: Any, role: Role) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GROUP_SECONDS
    while not await asyncio.to_thread(handle.wait, POLL_SECONDS):
        if loop.time() > deadline:
            takes = resources_text(bundles_of(role)[0].takes)
            nodes = "; ".join(
                f"{node.name} has {resources_text(node.free)}" for node in await asyncio.to_thread(live_nodes)
            )
            raise ConfigError(
                f"Ray found no room for {role.title} within {GROUP_SECONDS:g} seconds: {len(bundles_of(role))} places "
                f"of {takes}. Free are: {nodes}",
                remedy="see what else runs on the cluster, or lower num_actors or what an actor reserves",
            )


def _remove(handle: Any) -> None:
    with suppress(RayError, RuntimeError):  # the cluster may be gone
        remove_placement_group(handle)


def _bundle(bundle: Bundle) -> dict[str, float]:
    takes = bundle.takes
    resources = {"CPU": takes.cpus, "GPU": takes.gpus, "memory": takes.memory}
    # Ray refuses a bundle of nothing. A byte is on every node.
    return {name: value for name, value in resources.items() if value} or {"memory": 1}


def _strategy(role: Role) -> str:
    if role.nodes:
        return "STRICT_SPREAD"
    return "PACK" if role.strategy is Strategy.PACK else "SPREAD"


def _selector(role: Role, driver: str) -> dict[str, str]:
    if role.nodes is None:
        return dict(role.labels)
    return {**role.labels, NODE_ID: f"!{driver}" if role.nodes else driver}


def _resources(found: Mapping[str, float]) -> Resources:
    return Resources(found.get("CPU", 0.0), found.get("GPU", 0.0), found.get("memory", 0.0))


def _fits_if_empty(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> bool:
    try:
        make_plan(roles, [replace(node, free=node.total) for node in nodes])
    except ConfigError:
        return False
    return True
