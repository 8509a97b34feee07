"""A vLLM server that an actor starts and guards on its node: it ends with the actor, however that ends. The server is a
small one that leaves as much behind as vLLM does; the real one is asked in `tests/vllm`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import OnNode, engine_role

import loopwright
from loopwright.build.engine_actors import last_words
from loopwright.build.hosted_engine import hosted_vllm
from loopwright.engines.vllm.process import VllmServer, check_private
from loopwright.errors import ConfigError, EngineLostError

FAKE = Path(__file__).parents[1] / "engines" / "fake_vllm.py"
SECONDS = 60


@pytest.fixture
def elsewhere(two_nodes: Any) -> str:
    """The id of a node that is not the driver's."""
    return str(two_nodes.elsewhere)


@pytest.fixture
def server(tmp_path: Path) -> VllmServer:
    """Started as vLLM is: with a command line like its own."""
    executable = tmp_path / "vllm"
    find = "args[args.index('--port') + 1], args[args.index('--folder') + 1]"
    executable.write_text(
        f"#!{sys.executable}\nimport os, sys\nargs = sys.argv\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, {str(FAKE)!r}, {find}])\n"
    )
    executable.chmod(0o700)
    said = tmp_path / "said"
    said.mkdir()
    return VllmServer(
        executable=str(executable),
        model="a-model",
        dtype="float32",
        max_context=64,
        max_batch=2,
        args=("--folder", str(said)),
        # The guard is to come from the source under test too.
        env={"PYTHONPATH": str(Path(loopwright.__file__).parents[1])},
        cores=(),
        log=tmp_path / "log",
        state=tmp_path / "state",
        start_seconds=60,
    )


@asynccontextmanager
async def hosted(server: VllmServer, node: str, name: str) -> AsyncIterator[tuple[Any, str]]:
    from loopwright.cluster.node import this_node

    opening = partial(hosted_vllm, server, this_node(), name, 0, 1)
    async with OnNode(node).launch(engine_role(), 0, opening, "the engine") as host:
        yield host, await host.call("url")


def processes(server: VllmServer) -> list[int]:
    """Those that are alive of a server and of what it has started."""
    folder = server.args[1]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if folder in words and ") Z " not in stat:
                found.append(int(entry.name))
    return found


def guard_of(name: str) -> int:
    """The process that guards the server of that name. 0: there is no server."""
    state = Path(tempfile.gettempdir(), f"loopwright-{os.getuid()}-server-{name}.json")
    return int(json.loads(state.read_text())["guard"][0]) if state.exists() else 0


def is_healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        return bool(answer.status == 200)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.05)


def leave(host: Any) -> None:
    """Nothing: the block ends."""


def ray_kill(host: Any) -> None:
    import ray

    ray.kill(host._handle)


def kill_9(host: Any) -> None:
    os.kill(host.started.pid, signal.SIGKILL)


@pytest.mark.real
@pytest.mark.parametrize("end", [leave, ray_kill, kill_9])
async def test_the_server_ends_with_its_actor(elsewhere: str, server: VllmServer, end: Callable[[Any], None]) -> None:
    name = f"test-{os.getpid()}-{end.__name__}"
    async with hosted(server, elsewhere, name) as (host, url):
        assert host.started.node == elsewhere
        assert await asyncio.to_thread(is_healthy, url)
        assert processes(server)
        end(host)
        if end is not leave:
            await host.died()
    await until(lambda: not processes(server))


@pytest.mark.real
async def test_what_a_killed_guard_has_left_on_a_node_is_ended_by_the_next_server_there(
    elsewhere: str, server: VllmServer
) -> None:
    name = f"test-{os.getpid()}-left"
    async with hosted(server, elsewhere, name) as (host, _):
        os.kill(guard_of(name), signal.SIGKILL)
        kill_9(host)
        await host.died()
    left = processes(server)
    assert left
    async with hosted(server, elsewhere, name) as (host, url):
        assert await asyncio.to_thread(is_healthy, url)
        assert not set(left) & set(processes(server))
    await until(lambda: not processes(server))
    assert guard_of(name) == 0


@pytest.mark.real
async def test_a_server_that_dies_is_told_while_its_actor_lives(elsewhere: str, server: VllmServer) -> None:
    async with (
        hosted(server, elsewhere, f"test-{os.getpid()}-dies") as (host, _),
        last_words(host, "ended") as died,
    ):
        os.kill(processes(server)[0], signal.SIGKILL)
        async with asyncio.timeout(SECONDS):
            assert "SIGKILL" in await died()
        assert host.started.pid


@pytest.mark.real
async def test_a_server_that_cannot_start_says_why(elsewhere: str, server: VllmServer) -> None:
    with pytest.raises(EngineLostError, match="No such file"):
        async with hosted(replace(server, executable="/no/such/vllm"), elsewhere, f"test-{os.getpid()}-none"):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "192.168.7.7", "fd00::1"])
def test_development_routes_may_be_on_private_addresses(host: str) -> None:
    check_private(host)


@pytest.mark.parametrize("host", ["8.8.8.8", "0.0.0.0.0", "node-3.example"])
def test_development_routes_are_refused_elsewhere(host: str) -> None:
    with pytest.raises(ConfigError, match="could be reached from the internet"):
        check_private(host)
