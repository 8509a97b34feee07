"""Agents on actors keep the contract of rollout workers, and survive the loss of their actors and of the gateway's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from worker_contract import WorkerContract, ended, failure
from worker_world import ANSWER, World, until, world, written

from loopwright.agents.runners.marks import VARIABLE
from loopwright.build.gateway import RunSessions
from loopwright.cluster.logs import ActorLogs
from loopwright.core.redaction import Redactor
from loopwright.errors import BudgetError, ConfigError, WorkerLostError
from loopwright.gateway.takeover import NOTHING, label_of
from loopwright.serve.lease import LeaseHolder
from loopwright.serve.marked_processes import mark_of, started_at
from loopwright.types import FailureCause, RolloutRequest

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def crews_cluster(shared_ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The shared cluster, for all tests of this module."""
    shared_ray.up()
    from loopwright.cluster.cluster import Cluster

    logs = ActorLogs()
    logs.write_to(tmp_path_factory.mktemp("actors"), Redactor())
    return Cluster("127.0.0.1", logs)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama_folder: Path, crews_cluster: Cluster
) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("placed"), tiny_llama_folder, crews_cluster, gateway_actor=True) as opened:
        yield opened


class TestWorkersOnActors(WorkerContract):
    """One actor for each agent, and one for the gateway."""


async def sessions_of(house: World, request: RolloutRequest) -> list[str]:
    """What the gateway still has of an attempt."""
    assert house.sessions is not None
    said, label = await house.sessions.client.ask("GET", "/sessions"), label_of(request.split, request.key)
    return [session["id"] for session in said["sessions"] if session["label"] == label]


async def sessions_deleted(house: World, request: RolloutRequest) -> None:
    async with asyncio.timeout(10):
        while await sessions_of(house, request):
            await asyncio.sleep(0.05)


def again(request: RolloutRequest) -> RolloutRequest:
    return replace(request, key=replace(request.key, attempt=request.key.attempt + 1))


async def test_an_actor_has_neither_torch_nor_the_drivers_environment_and_the_driver_no_agent(
    house: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await house.worker.run(house.request("own", "environment"))
    assert made.episode is not None
    told = json.loads(made.episode.answer)
    assert told["pid"] != os.getpid()
    assert not told["torch"]
    assert not [name for name in told["variables"] if "KEY" in name]
    assert (house.folder / f"made-in-{told['pid']}").exists()
    assert not (house.folder / f"made-in-{os.getpid()}").exists()


async def test_what_would_end_the_process_of_an_agent_is_a_failure_of_the_agent(house: World) -> None:
    made = await house.worker.run(house.request("own", "exits"))
    assert failure(made) == (FailureCause.AGENT, "SystemExit")
    request = house.request("served", "exits")
    assert failure(await house.worker.run(request)) == (FailureCause.AGENT, "SystemExit")
    await sessions_deleted(house, request)


async def test_a_session_is_deleted_when_its_rollout_is_stored_and_not_before(house: World) -> None:
    request = house.request("served", "stored")
    await house.worker.run(request)
    assert await sessions_of(house, request)
    house.worker.stored(request.split, request.key)
    await sessions_deleted(house, request)


async def test_a_lost_actor_is_another_attempt_on_a_new_one(house: World) -> None:
    request = house.request("own", "waits")
    run = asyncio.create_task(house.worker.run(request))
    pid = await house.began("waits")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="loops-own-0"):
        await ended(run)
    made = await house.worker.run(again(house.request("own", "answered")))
    assert made.episode is not None
    assert made.episode.answer == ANSWER
    assert await house.began("answered") != pid


async def test_the_sessions_of_a_lost_actor_are_deleted(house: World) -> None:
    request = house.request("served", "waits")
    run = asyncio.create_task(house.worker.run(request))
    pid = await house.began("waits")
    assert await sessions_of(house, request)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        await ended(run)
    await sessions_deleted(house, request)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
async def test_the_programs_of_a_lost_actor_are_ended_and_leave_nothing(house: World) -> None:
    run = asyncio.create_task(house.worker.run(house.request("program", "waits", "Please wait.")))
    program = await house.began("program")
    mark = str(mark_of(program, VARIABLE))
    folder = Path(tempfile.gettempdir()) / f"loopwright-{os.getuid()}" / mark
    assert folder.is_dir()
    _, owner, *_ = mark.split("-")
    os.kill(int(owner), signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        await ended(run)
    made = await house.worker.run(house.request("program", "again", "Say hello."))
    assert made.episode is not None
    assert not folder.exists()
    await until(lambda: started_at(program) is None)


async def test_a_gateway_that_died_is_started_again_and_its_rollouts_are_infrastructure(house: World) -> None:
    assert house.sessions is not None
    runs = [asyncio.create_task(house.worker.run(house.request("served", "waits"))) for _ in range(2)]
    await house.began("waits")
    before = house.sessions.client.url
    os.kill(listener_of(before), signal.SIGKILL)
    for made in [await ended(run) for run in runs]:
        assert failure(made) == (FailureCause.INFRA, "EngineLostError")
    made = await house.worker.run(house.request("served", "serve"))
    assert made.episode is not None
    assert len(made.episode.chains) == 2
    assert house.sessions.client.url != before


async def test_a_rollout_that_waits_for_a_new_actor_finds_the_gateway_that_has_moved_meanwhile(house: World) -> None:
    assert house.sessions is not None
    run = asyncio.create_task(house.worker.run(house.request("served", "waits")))
    pid = await house.began("waits")
    os.kill(pid, signal.SIGKILL)
    os.kill(listener_of(house.sessions.client.url), signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        await ended(run)
    # At the address of the lost one it would wait for two minutes.
    async with asyncio.timeout(100):
        made = await house.worker.run(house.request("served", "serve"))
    assert made.episode is not None


async def test_when_the_gateway_is_given_up_its_rollouts_end_with_the_reason(house: World) -> None:
    assert house.sessions is not None
    run = asyncio.create_task(house.worker.run(house.request("served", "waits")))
    pid = await house.began("waits")
    house.sessions.cannot_go_on(BudgetError("no actor of gateway is left", remedy="see its log"))
    try:
        for ending in (run, asyncio.create_task(house.worker.run(house.request("served", "serve")))):
            with pytest.raises(BudgetError, match="no actor of gateway is left"):
                await ended(ending)
    finally:
        # As it was before, for other tests.
        house.sessions.lost = None
        os.kill(pid, signal.SIGKILL)


async def test_a_gateway_that_dies_while_the_run_registers_is_started_again(
    house: World, tmp_path: Path, tiny_llama_folder: Path, crews_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.build.hosted_gateway import sessions_on_actor

    assert house.sessions is not None
    register, killed = RunSessions.open, list[str]()

    def first_killed(self: RunSessions, url: str, key: str) -> Any:
        if not killed:
            killed.append(url)
            os.kill(listener_of(url), signal.SIGKILL)
        return register(self, url, key)

    monkeypatch.setattr(RunSessions, "open", first_killed)
    loaded = written(tmp_path, tiny_llama_folder, ["served"], gateway_actors=1)
    model, holder = house.sessions.client.registration.model, LeaseHolder("b" * 16, 0)
    opening = RunSessions(loaded, model, holder, NOTHING, lambda: 0.0, Redactor())
    async with asyncio.timeout(180), sessions_on_actor(opening, crews_cluster) as sessions:
        assert sessions.client.url not in killed
        assert (await sessions.client.ask("GET", "/sessions"))["sessions"] == []


async def test_a_mistake_in_an_agent_is_found_when_its_actors_start(
    tmp_path: Path, tiny_llama_folder: Path, crews_cluster: Cluster
) -> None:
    from loopwright.build.hosted_worker import open_loop_crews

    loaded = written(tmp_path, tiny_llama_folder, ["own"])
    (tmp_path / "agents.py").write_text("import a_module_that_nobody_has\n")
    with pytest.raises(ConfigError, match=r"importing agents.py failed at agents.py:1") as caught:
        async with open_loop_crews(loaded, crews_cluster):
            """It does not open."""
    assert caught.value.remedy


async def test_an_agent_that_cannot_be_sent_is_refused_by_name(
    tmp_path: Path, tiny_llama_folder: Path, crews_cluster: Cluster
) -> None:
    from threading import Lock

    from loopwright.build.hosted_worker import open_loop_crews

    loaded = written(tmp_path, tiny_llama_folder, ["own"], path="object:my.Agent()")
    with pytest.raises(ConfigError, match=r"object:my.Agent\(\).*cannot be sent to an actor"):
        async with open_loop_crews(replace(loaded, objects={"object:my.Agent()": Lock()}), crews_cluster):
            """It does not open."""


def listener_of(url: str) -> int:
    """The process that listens at a URL of this machine."""
    port = int(url.rsplit(":", 1)[1])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9] for line in lines if int(line.split()[1].split(":")[1], 16) == port}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
            except OSError:
                continue
            if any(f"socket:[{inode}]" in links for inode in inodes if inode != "0"):
                return int(process.name)
    raise AssertionError(f"nobody listens at {url}")
