"""A process that opens a cluster for the run in a folder, and tells what it has. It goes on when it reads a line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from cluster_parts import open_part

from loopwright.cluster.opening import open_cluster
from loopwright.config.placement import ClusterConfig
from loopwright.config.roles import Role, RoleKind
from loopwright.core.redaction import Redactor


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def noted(run: Path) -> str | None:
    note = run / "ray.json"
    return json.loads(note.read_text())["folder"] if note.exists() else None


async def go_on() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def main(run: Path, address: str | None) -> None:
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    async with open_cluster(ClusterConfig(address=address, num_cpus=4), run) as cluster:
        role = Role(RoleKind.LOOPS, "mine", 2, cpus=0.25)
        with cluster.kept_in(run / "actors", run / "ray.json", Redactor(["a secret thing"])):
            from loopwright.cluster.remote_host import RemoteHost

            async with cluster.crew(role, open_part, "mine") as crew:
                hosts = [member.host for member in crew.running if isinstance(member.host, RemoteHost)]
                await hosts[0].call("say", "a line with a secret thing")
                children = await hosts[0].call("children")
                tell(
                    address=cluster.address,
                    folder=noted(run),
                    token=os.environ.get("RAY_AUTH_TOKEN"),
                    handlers=[signal.getsignal(one) is on_signal for one in (signal.SIGTERM, signal.SIGINT)],
                    actors=[host.started.pid for host in hosts],
                    children=children,
                )
                await go_on()
                os.kill(hosts[1].started.pid, signal.SIGKILL)
                await hosts[1].died()
                await asyncio.sleep(1.5)  # Ray tells of a dead worker about a second later
                pending = asyncio.create_task(hosts[0].call("forget_time"))
                await asyncio.sleep(0)
    tell(pending=type((await asyncio.gather(pending, return_exceptions=True))[0]).__name__)
    import ray

    from loopwright.cluster.host import Host

    try:
        ray.remote(Host).remote("stray")
    except Exception as error:
        tell(stray=type(error).__name__)


def on_signal(number: int, frame: object) -> None:
    tell(signal=number)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(exist_ok=True)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
