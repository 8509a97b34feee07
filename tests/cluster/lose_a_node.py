"""A program: a cluster of three nodes on this machine loses one, goes on with the rest, and gets another one.

It prints one line of JSON. It is a process of its own, because a process that has started a cluster cannot join one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from loopwright.cluster.environment import prepare_environment
from loopwright.config.placement import Strategy
from loopwright.config.roles import Role, RoleKind

SECONDS = 60.0
"""How long anything here may take."""
SOON = {f"health_check_{name}_ms": 500 for name in ("period", "timeout")}
SOON |= {"health_check_initial_delay_ms": 0, "health_check_failure_threshold": 3}
SMALL = {"num_cpus": 3, "object_store_memory": 80 << 20}
ROLES = [
    Role(RoleKind.JUDGERS, "exact", 3, 1.0, strategy=Strategy.SPREAD),
    Role(RoleKind.LOOPS, "train", 3, 1.0, strategy=Strategy.SPREAD),
    Role(RoleKind.ENGINES, "torch", 2, 1.0, nodes=2),
]


class Part:
    async def node(self) -> str:
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        await asyncio.sleep(0.01)
        return node


@asynccontextmanager
async def open_part() -> AsyncIterator[Part]:
    yield Part()


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)


async def asked(crew: Any, times: int) -> list[str]:
    """On which nodes the actors of a crew are that do so many pieces of work at once."""
    return sorted(await asyncio.gather(*(crew.work("node") for _ in range(times))))


def plan(config: str, address: str) -> list[str]:
    """What `loopwright cluster plan` says of this cluster."""
    command = [sys.executable, "-m", "loopwright.cli", "cluster", "plan", config, f"cluster.address={address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    return done.stdout.splitlines() or [done.stderr]


async def main(config: str, folder: Path) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster as Simulated

    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.groups import live_nodes
    from loopwright.cluster.logs import ActorLogs
    from loopwright.core.redaction import Redactor

    deaths, logs = list[str](), ActorLogs()
    logs.write_to(folder, Redactor())
    simulated = Simulated(
        initialize_head=True,
        head_node_args={**SMALL, "num_cpus": 2, "_system_config": SOON, "include_dashboard": False},
    )
    try:
        nodes = [simulated.add_node(**SMALL) for _ in range(2)]
        ray.init(address=simulated.address, log_to_driver=False, configure_logging=False)
        driver = ray.get_runtime_context().get_node_id()
        cluster = Cluster("127.0.0.1", logs, on_death=lambda name, words: deaths.append(name))
        planned = await asyncio.to_thread(plan, config, simulated.address)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cluster.reserved(ROLES))
            crews = [await stack.enter_async_context(cluster.crew(role, open_part, role.title)) for role in ROLES]
            before = [await asked(crew, 12) for crew in crews]
            lost, stays = (node.node_id for node in nodes)
            simulated.remove_node(nodes[0], allow_graceful=False)

            async def smaller() -> bool:
                return all(len(crew.running) == role.count - 1 for crew, role in zip(crews, ROLES, strict=True))

            await until(smaller)
            rest = [await asked(crew, 12) for crew in crews]
            new = simulated.add_node(**SMALL).node_id

            async def complete() -> bool:
                return all(len(crew.running) == role.count for crew, role in zip(crews, ROLES, strict=True))

            await until(complete)
            after = [await asked(crew, 12) for crew in crews]
            restarts = [member.deaths for crew in crews for member in crew.running]

        async def free() -> bool:
            return all(node.free == node.total for node in live_nodes())

        await until(free)
        groups = {group["state"] for group in ray.util.placement_group_table().values()}
    finally:
        ray.shutdown()
        simulated.shutdown()
    names = {driver: "driver", lost: "lost", stays: "stays", new: "new"}

    def named(answers: list[list[str]]) -> dict[str, list[str]]:
        each = (sorted({names[node] for node in found}) for found in answers)
        return dict(zip((str(role.kind) for role in ROLES), each, strict=True))

    found = {"before": named(before), "rest": named(rest), "after": named(after)}
    return {**found, "deaths": sorted(deaths), "restarts": max(restarts), "plan": planned, "groups": sorted(groups)}


if __name__ == "__main__":
    prepare_environment(joins=True)
    # This cluster is on one machine, and nobody else's business.
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
