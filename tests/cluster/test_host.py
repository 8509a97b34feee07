"""A part on an actor: calls, errors, cancellation, memory, last words."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster_parts import (
    cannot_open,
    dies_while_opening,
    hangs_after_the_first_start,
    needs_lock,
    open_part,
    opens_for_ever,
    takes_memory_while_opening,
)
from ray_nodes import OnNode

from loopwright.cluster.crew import Crew
from loopwright.cluster.logs import ActorLogs
from loopwright.config.roles import Role, RoleKind
from loopwright.core.redaction import names_a_secret
from loopwright.errors import BudgetError, ClusterRoomError, ConfigError, RemoteError, WorkerLostError

pytestmark = pytest.mark.real

MIB = 1 << 20


def role(memory: int | None = None, count: int = 1) -> Role:
    return Role(RoleKind.JUDGERS, "mine", count, cpus=0.25, memory=memory)


def living_actors() -> int:
    from ray._private import state

    return sum(actor["State"] != "DEAD" for actor in state.actors().values())


async def until(condition, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_call_gives_what_the_method_returns(cluster):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        assert await host.call("echo", {"a": (1, None)}) == {"a": (1, None)}
        assert await host.call("pid") == host.started.pid
        assert host.started.address == "127.0.0.1"


async def test_nothing_but_calls_reaches_the_part(cluster):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        with pytest.raises(AttributeError):
            host.secret  # noqa: B018
        with pytest.raises(AttributeError, match="no_such_method"):
            await host.call("no_such_method")
        with pytest.raises(TypeError, match="not callable"):
            await host.call("secret")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        ("ValueError", ValueError, "bad"),
        ("unpicklable", RemoteError, "UnpicklableError: it was 3"),
        ("KeyboardInterrupt", RemoteError, "KeyboardInterrupt: stop"),
        ("SystemExit", RemoteError, "SystemExit: 4"),
        ("CancelledError", RemoteError, "CancelledError: not by you"),
        ("StopIteration", RuntimeError, "StopIteration"),
    ],
)
async def test_errors_arrive_with_their_types_and_the_actor_lives_on(cluster, error, kind, text):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        with pytest.raises(kind, match=text):
            await host.call("fail", error)
        assert await host.call("echo", 1) == 1


async def test_a_value_that_cannot_be_sent_costs_no_actor(cluster):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        with pytest.raises(RemoteError, match="could not be sent"):
            await host.call("environment_of_lock")
        assert await host.call("echo", 1) == 1
        with pytest.raises(RemoteError, match="could not be sent"):
            await host.call("echo", threading.Lock())
        assert await host.call("echo", 1) == 1


async def test_an_answer_of_a_class_that_only_the_actor_has_costs_no_actor(cluster):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        with pytest.raises(RemoteError, match=r"could not be sent: .*No module named 'only_there'"):
            await host.call("of_a_class_of_its_own")
        assert await host.call("echo", 1) == 1


async def test_cancelling_a_call_frees_what_it_held_before_the_caller_goes_on(cluster, tmp_path: Path):
    held = tmp_path / "held"
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        call = asyncio.create_task(host.call("hold", str(held)))
        await until(held.exists)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not held.exists()
        assert await host.call("echo", 1) == 1


async def test_a_call_that_ignores_its_cancellation_is_cancelled_for_the_caller(cluster, tmp_path: Path):
    noticed = tmp_path / "noticed"
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        call = asyncio.create_task(host.call("run_on", str(noticed)))
        await host.call("echo", 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert noticed.read_text() == "cancelled"


@pytest.mark.parametrize("raises", [False, True])
async def test_leaving_the_context_closes_the_part_and_ends_the_actor(cluster, tmp_path: Path, raises):
    closed = tmp_path / "closed"
    with pytest.raises(ZeroDivisionError) if raises else nullcontext():
        async with cluster.launch(role(), 0, partial(open_part, str(closed)), "mine"):
            assert not closed.exists()
            assert living_actors() == 1
            if raises:
                1 / 0  # noqa: B018
    assert closed.read_text() == "closed"
    await until(lambda: living_actors() == 0)


async def test_a_part_that_cannot_be_opened_leaves_no_actor(cluster):
    with pytest.raises(FileNotFoundError, match="there is no such model") as caught:
        async with cluster.launch(role(), 0, cannot_open, "mine"):
            pass
    assert caught.value.filename == "model"
    await until(lambda: living_actors() == 0)


async def test_a_part_that_cannot_be_pickled_is_named(cluster):
    with pytest.raises(ConfigError, match="judger 'mine' cannot be sent to an actor"):
        cluster.launch(role(), 0, partial(needs_lock, threading.Lock()), "judger 'mine'")


async def test_a_process_that_dies_while_it_opens_its_part_says_why(cluster):
    with pytest.raises(WorkerLostError, match="a library is missing"):
        async with cluster.launch(role(), 0, dies_while_opening, "mine"):
            pass


async def test_the_last_words_of_an_actor_are_in_its_log_and_in_the_error(cluster, tmp_path: Path):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        await host.call("say", "a line before")
        with pytest.raises(WorkerLostError, match=r"is lost: ActorDiedError.*\n(.*\n)*segmentation fault"):
            await host.call("die", "segmentation fault")
        assert "segmentation fault" in await host.died()
        with pytest.raises(WorkerLostError, match="segmentation fault"):
            await host.call("echo", 1)
    log = (tmp_path / "actors" / "judgers-mine-0.log").read_text()
    assert log.splitlines() == ["a line before", "segmentation fault"]


async def test_an_actor_that_is_closed_leaves_its_whole_output(cluster, tmp_path: Path):
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        await host.call("say", "one\nhalf a line")
    assert (tmp_path / "actors" / "judgers-mine-0.log").read_text() == "one\nhalf a line\n"


@pytest.mark.parametrize("blocks", [False, True])
async def test_an_actor_that_takes_too_much_memory_ends_with_that_cause(cluster, blocks):
    async with cluster.launch(role(memory=400 * MIB), 0, open_part, "mine") as host:
        with pytest.raises(WorkerLostError, match="memory_per_actor is 400 MiB"):
            await host.call("eat", 500 * MIB, blocks)
        async with asyncio.timeout(5):
            assert "memory_per_actor is 400 MiB" in await host.died()


@pytest.mark.parametrize("opening", [False, True])
async def test_an_actor_elsewhere_that_blocks_its_event_loop_ends_with_that_cause_too(two_nodes, opening):
    """What it has written is on the other node, so it has to say it itself."""
    on = OnNode(two_nodes.elsewhere, memory=400 * MIB)
    opens = takes_memory_while_opening if opening else open_part

    async def eaten() -> None:
        async with on.launch(role(), 0, opens, "mine") as host:
            assert host.started.node == two_nodes.elsewhere
            await host.call("eat", 500 * MIB, True)

    with pytest.raises(WorkerLostError, match="memory_per_actor is 400 MiB"):
        await eaten()


async def test_an_actor_that_finds_no_room_says_what_it_takes_and_what_there_is(cluster):
    from loopwright.cluster.cluster import Cluster

    small, before = Cluster("127.0.0.1", ActorLogs(), room_seconds=1.5), living_actors()
    huge = Role(RoleKind.JUDGERS, "mine", 1, cpus=64.0)
    with pytest.raises(ClusterRoomError, match=r"within 1\.5 s.*it takes 64 CPUs\. Free are: .* of 16 CPUs") as raised:
        async with asyncio.timeout(20), small.launch(huge, 0, open_part, "mine"):
            pass
    assert "cluster.room_seconds" in raised.value.remedy
    await until(lambda: living_actors() == before)


async def test_an_idle_actor_that_is_too_large_is_lost_with_that_cause(cluster):
    """It may say so before its part is open."""

    async def end() -> str:
        try:
            async with cluster.launch(role(memory=10 * MIB), 0, open_part, "mine") as host, asyncio.timeout(10):
                return str(await host.died())
        except WorkerLostError as error:
            return error.message

    assert "memory_per_actor is 10 MiB" in await end()


async def test_an_actor_that_takes_too_much_memory_is_started_again(cluster):
    lost: list[str] = []
    from loopwright.cluster.cluster import Cluster

    big = Cluster("127.0.0.1", ActorLogs(), on_death=lambda name, words: lost.append(words))
    async with big.crew(role(memory=400 * MIB), open_part, "mine") as crew:
        first = await crew.work("pid")
        with pytest.raises(WorkerLostError, match="memory_per_actor is 400 MiB"):
            await crew.work("eat", 500 * MIB, False)
        await until(lambda: lost)
        async with asyncio.timeout(20):
            assert await crew.work("pid") != first
    assert len(lost) == 1
    assert "memory_per_actor is 400 MiB" in lost[0]


async def test_no_secret_reaches_an_actor_or_its_children(cluster):
    assert "LOOPWRIGHT_TEST_KEY" in os.environ
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        seen = await host.call("environment")
        assert "PATH" in seen
        assert not [name for name in seen if names_a_secret(name)]
        assert seen["RAY_AUTH_MODE"] == "token"
        # Ray works on without the token in the environment.
        assert await host.call("put_through_ray", b"x" * MIB) == b"x" * MIB
        below = await host.call("childrens_environment")
        assert below.keys() <= seen.keys()
        assert not [name for name in below if name.startswith(("RAY_", "LOOPWRIGHT_")) or names_a_secret(name)]


@pytest.mark.parametrize(("reserved", "seen"), [([], ""), (["2"], "2"), (["2", "3"], "2,3")])
async def test_an_actor_sees_the_gpus_that_it_reserves(cluster, monkeypatch, reserved, seen):
    """Ray has named those that are reserved. To an actor without one it shows all."""
    import ray

    from loopwright.cluster.host import _hide_gpus

    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": reserved, "TPU": []})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(reserved) or "0,1,2,3")
    _hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


async def test_an_actor_keeps_the_settings_of_what_computes(cluster, monkeypatch):
    from loopwright.cluster.host import _forget_secrets

    env = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "RAY_JOB_ID": "1", "OPENAI_API_KEY": "secret", "X": "y"}
    monkeypatch.setattr(os, "environ", env)
    _forget_secrets()
    assert set(env) == {"PYTORCH_ALLOC_CONF", "RAY_JOB_ID"}


async def test_an_actor_that_reserves_no_gpu_sees_none(cluster):
    """Ray lets it see all of them."""
    async with cluster.launch(role(), 0, open_part, "mine") as host:
        assert (await host.call("environment"))["CUDA_VISIBLE_DEVICES"] == ""
        assert (await host.call("childrens_environment"))["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_restart_that_hangs_is_given_up_with_its_last_words(cluster, tmp_path: Path, monkeypatch, blocks):
    from loopwright.cluster.cluster import Cluster

    monkeypatch.setattr("loopwright.cluster.remote_host.GRACE_SECONDS", 0.5)
    limited = Cluster("127.0.0.1", ActorLogs(), start_seconds=60.0)
    opening = partial(hangs_after_the_first_start, str(tmp_path / "mark"), blocks)
    launch = partial(limited.launch, role(), 0, opening, "mine")
    async with Crew.open("mine", [("mine", launch)], max_restarts=1) as crew:
        limited._start_seconds = 2.0
        with pytest.raises(WorkerLostError):
            await crew.work("die", "")
        with pytest.raises(BudgetError, match=r"not ready within 2 s, which cluster\.start_seconds (.*\n)*waiting"):
            async with asyncio.timeout(20):
                await crew.work("pid")
    await until(lambda: living_actors() == 0)


async def test_an_actor_that_waits_for_room_can_be_given_up(cluster):
    huge = replace(role(), cpus=1000)
    starting = asyncio.create_task(cluster.launch(huge, 0, open_part, "mine").__aenter__())
    await asyncio.sleep(0)
    starting.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await starting
    await until(lambda: living_actors() == 0)


async def test_a_start_that_is_cancelled_cleans_up_and_leaves_no_actor(cluster, tmp_path: Path):
    held = tmp_path / "held"
    starting = asyncio.create_task(cluster.launch(role(), 0, partial(opens_for_ever, str(held)), "mine").__aenter__())
    await until(held.exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not held.exists()
    await until(lambda: living_actors() == 0)
