"""Room on a live cluster: what is reserved for whom, what is refused at once, and nodes that come and go."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_parts import open_part

from loopwright.cluster.nodes import ClusterNode, Resources, bundles_of
from loopwright.cluster.plan import PlacedBundle, Plan
from loopwright.config.placement import Strategy
from loopwright.config.roles import Role, RoleKind
from loopwright.errors import ConfigError, WorkerLostError

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
NUM_CPUS = 16
GIB = 2**30
LOOPS = Role(RoleKind.LOOPS, "train", 2, 0.25)


async def free() -> Resources:
    """What is free on the shared cluster, once everything that ended is accounted for."""
    from loopwright.cluster.groups import live_nodes

    async with asyncio.timeout(20):
        while (node := live_nodes()[0]).free.cpus != NUM_CPUS:
            await asyncio.sleep(0.1)
    return node.free


def groups() -> list[dict[str, Any]]:
    """The groups that are there."""
    import ray

    return [one for one in ray.util.placement_group_table().values() if one["state"] != "REMOVED"]


async def test_actors_are_in_the_reserved_room_and_it_is_given_back(cluster, tmp_path):
    import ray

    before = await free()
    roles = [LOOPS, Role(RoleKind.JUDGERS, "exact", 3, 1.0, memory=GIB, strategy=Strategy.SPREAD)]
    async with cluster.reserved(roles), cluster.crew(LOOPS, open_part, "the agent") as crew:
        assert await crew.work("echo", 1) == 1
        assert sorted((one["strategy"], len(one["bundles"])) for one in groups()) == [("PACK", 2), ("SPREAD", 3)]
        node = next(one for one in ray.nodes() if one["Alive"])
        left = ray._private.state.available_resources_per_node()[node["NodeID"]]
        assert left["CPU"] == NUM_CPUS - 3.5, "the actors are inside of what was reserved for them"
        assert left["memory"] == before.memory - 3 * GIB
    assert groups() == []
    assert await free() == before
    assert "loops 'train'" in (tmp_path / "actors" / "plan.log").read_text()


async def test_the_room_is_given_back_after_an_error_too(cluster):
    await free()
    with pytest.raises(RuntimeError, match="by the user"):
        async with cluster.reserved([LOOPS]):
            raise RuntimeError("by the user")
    assert groups() == []
    await free()


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (Role(RoleKind.LOOPS, "x", 9, 2.0), "9 loops x 2 CPUs = 18 CPUs; the cluster has 16, its largest node 16"),
        (Role(RoleKind.LOOPS, "x", 1, 0.0, gpus=1.0), "1 loop x 1 GPU = 1 GPU; the cluster has 0"),
        (Role(RoleKind.LOOPS, "x", 1, 0.0, memory=2**50), "1 loop x 1.05e+06 GiB"),
        (Role(RoleKind.LOOPS, "x", 1, 1.0, labels={"zone": "a"}), "no node has the labels zone: a"),
        (Role(RoleKind.ENGINES, "x", 1, 1.0, nodes=1), "the nodes other than the driver's are 0"),
    ],
)
async def test_what_never_fits_is_refused_at_once_and_nothing_waits(cluster, role, words):
    await free()
    with pytest.raises(ConfigError) as error:
        async with asyncio.timeout(5), cluster.reserved([role]):
            pass
    assert words in error.value.message
    assert groups() == []


async def test_what_others_have_just_left_is_waited_for(cluster, monkeypatch):
    from loopwright.cluster import groups as room

    total = Resources(4.0)
    answers = [
        ClusterNode("1", "a", total, Resources(0.5)),
        ClusterNode("1", "a", total, Resources()),
        ClusterNode("1", "a", total, total),
    ]
    monkeypatch.setattr(room, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(room, "live_nodes", lambda: [answers.pop(0)])
    plan, _ = await room.live_plan([Role(RoleKind.LOOPS, "x", 4, 1.0)])
    assert len(plan.placed) == 4
    monkeypatch.setattr(room, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(room, "live_nodes", lambda: [ClusterNode("1", "a", total, Resources(0.5))])
    with pytest.raises(ConfigError, match=r"3\.5 CPUs in use"):
        await room.live_plan([LOOPS, Role(RoleKind.LOOPS, "x", 1, 1.0)])


async def test_a_group_that_ray_cannot_place_is_given_up_and_removed(cluster, monkeypatch):
    from loopwright.cluster import groups as room

    await free()
    monkeypatch.setattr(room, "GROUP_SECONDS", 0.1)
    large = Role(RoleKind.LOOPS, "large", 1, 17.0)
    plan = Plan((PlacedBundle(bundles_of(large)[0], ClusterNode("1", "a", Resources(17.0), Resources(17.0))),))
    with pytest.raises(ConfigError, match=r"no room for loops 'large' .* 1 places of 17 CPUs. Free are: .* 16 CPUs"):
        async with room.reserved(plan):
            pass
    assert groups() == []


async def test_an_actor_without_cpus_needs_none(cluster):
    """Ray would want one to place it if it were not told that it takes none."""
    await free()
    gateway = Role(RoleKind.GATEWAY, "gateway", 1, 0.0)
    roles = [Role(RoleKind.LOOPS, "all", NUM_CPUS, 1.0), gateway]
    async with asyncio.timeout(30), cluster.reserved(roles), cluster.crew(gateway, open_part, "the gateway") as crew:
        assert await crew.work("echo", 1) == 1
    await free()


@pytest.mark.parametrize("memory", [None, GIB])
async def test_every_way_of_starting_an_actor_asks_for_the_same(cluster, memory):
    role = Role(RoleKind.JUDGERS, "exact", 2, 0.0, memory=memory)
    asked = {"num_cpus": 0.0, "num_gpus": 0.0, "memory": memory or 0}
    assert cluster._options(role, 0) == asked
    async with cluster.reserved([role]):
        reserved = dict(cluster._options(role, 1))
        place = reserved.pop("scheduling_strategy")
        assert reserved == asked
        assert place.placement_group_bundle_index == 1


async def test_a_start_on_a_node_that_is_gone_costs_no_restart(cluster, monkeypatch):
    """Ray takes 15 seconds to notice that a node is lost. But nobody waits for one that never ran: that is an error."""
    from loopwright.cluster import cluster as room

    gone = WorkerLostError("its node is lost", remedy="", node_lost=True)
    starts: list[Exception | None] = [gone, None, gone, gone, None, RuntimeError("broken")]

    @asynccontextmanager
    async def launched(name, *args, **options):
        if (error := starts.pop(0)) is not None:
            raise error
        yield name

    monkeypatch.setattr(room, "launched", launched)
    monkeypatch.setattr(room, "PAUSE_SECONDS", 0.0)
    with pytest.raises(WorkerLostError):
        await cluster.launch(LOOPS, 0, open_part, "the agent").__aenter__()
    for left in (4, 1):
        async with cluster.launch(LOOPS, 0, open_part, "the agent") as host:
            assert (host, len(starts)) == ("loops-train-0", left)
    with pytest.raises(RuntimeError, match="broken"):
        await cluster.launch(LOOPS, 0, open_part, "the agent").__aenter__()


def test_a_node_is_lost_and_another_one_takes_its_place(tmp_path):
    """The run goes on with the rest. What was on the node has no room elsewhere, so it waits, which costs no restart,
    and is started on the new node. Engines with nodes of their own never go to the driver's."""
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: {path: smollm2}\ndata: {kind: jsonl, path: tasks.jsonl}\ntrainer: {run_dir: r, steps: 1}\n"
        "agent: {kind: single_turn, judger: integer_answer, num_actors: 2, num_cpus_per_actor: 3}\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    env = {name: value for name, value in env.items() if not name.startswith(("RAY_", "LOOPWRIGHT_"))}
    command = [sys.executable, str(HERE / "lose_a_node.py"), str(config), str(tmp_path / "actors")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["before"] == {
        "judgers": ["driver", "lost", "stays"],
        "loops": ["driver", "lost", "stays"],
        "engines": ["lost", "stays"],
    }
    assert found["rest"] == {"judgers": ["driver", "stays"], "loops": ["driver", "stays"], "engines": ["stays"]}
    assert found["after"] == {
        "judgers": ["driver", "new", "stays"],
        "loops": ["driver", "new", "stays"],
        "engines": ["new", "stays"],
    }
    assert [name.rpartition("-")[0] for name in found["deaths"]] == ["engines-torch", "judgers-exact", "loops-train"]
    assert found["restarts"] == 0, "the budget is whole again"
    assert found["groups"] == ["REMOVED"]
    head, *rows, total = found["plan"]
    assert head.split() == ["role", "actors", "per", "actor", "node"]
    assert [row.split()[:5] for row in rows] == [["loops", "'train'", "1", "3", "CPUs"]] * 2
    assert total.startswith("the run takes 6 CPUs of 8 CPUs")
