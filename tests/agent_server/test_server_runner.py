"""The runner over agent servers: it waits for room, spreads trials, and cancels what nobody wants any more."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from server_house import KEY, TASK, House, house, left

from loopwright import Scored
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.server import ServerRunner
from loopwright.agents.trials.wire import TrialState
from loopwright.config import ExitCodeReward, ServerRunnerConfig
from loopwright.errors import AgentServerError, ProgramError, SetupError
from loopwright.ports import Endpoint
from loopwright.types import RolloutKey, RolloutRequest, Sampling, Split

ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "key", "http://127.0.0.1:1", "m")


def request(draw: int = 0, attempt: int = 0) -> RolloutRequest:
    return RolloutRequest(Split.TRAIN, RolloutKey("set", draw, 0, attempt), TASK, Sampling(), math.inf)


def runner(folder: Path, urls: list[str], script: str, *, graded: bool = True) -> ServerRunner:
    inner = {"kind": "command", "command": ["sh", "-c", script]}
    config = ServerRunnerConfig.model_validate({"urls": urls, "key_env": "K", "runner": inner, "wait_seconds": 0.5})
    host = ProgramHost.here(folder, folder / "run", os.environ, {"K": KEY})
    return ServerRunner(config, ExitCodeReward() if graded else None, host)


async def run(using: ServerRunner, draw: int = 0, attempt: int = 0) -> object:
    async with using.prepared(request(draw, attempt)) as program:
        await program.run(ENDPOINT)
        return await program.reward()


async def test_more_trials_than_room_are_spread_and_all_run_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        houses: list[House] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            houses.append(await stack.enter_async_context(house(tmp_path / name, slots=1, queue=1)))
        using = runner(tmp_path, [one.client.url for one in houses], "sleep 0.2; exit 10")
        await stack.enter_async_context(using)
        async with asyncio.timeout(120):
            rewards = await asyncio.gather(*(run(using, draw) for draw in range(8)))
        assert rewards == [Scored(0.0)] * 8
        shares = [len(await one.client.list(all=True)) for one in houses]
        assert sum(shares) == 8
        assert min(shares) >= 2


async def test_a_retry_goes_to_the_same_server(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        houses: list[House] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            houses.append(await stack.enter_async_context(house(tmp_path / name)))
        using = await stack.enter_async_context(runner(tmp_path, [one.client.url for one in houses], "true"))
        for attempt in range(4):
            await run(using, 0, attempt)
        assert sorted([len(await one.client.list(all=True)) for one in houses]) == [0, 4]


async def test_a_failed_program_raises_here(tmp_path: Path) -> None:
    async with (
        house(tmp_path) as here,
        runner(tmp_path, [here.client.url], "echo oh; exit 3", graded=False) as using,
        using.prepared(request()) as program,
    ):
        with pytest.raises(ProgramError, match="exit code 3"):
            await program.run(ENDPOINT)
        assert program.output.text == "oh\n"


async def test_a_cancelled_rollout_leaves_nothing_on_the_server(tmp_path: Path) -> None:
    async with house(tmp_path) as here, runner(tmp_path, [here.client.url], "sleep 1000") as using:
        running = asyncio.create_task(run(using))
        async with asyncio.timeout(60):
            while not here.trials.states()[TrialState.RUN.value]:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running}, timeout=60)
        assert running.cancelled()
        assert await here.client.list() == []
        assert left(tmp_path) == []


@asynccontextmanager
async def mute_server() -> AsyncIterator[str]:
    """An agent server with much room, that takes trials and never says so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if asked.startswith(b"GET /load"):
            body = b'{"slots": 99, "running": 0, "queued": 0, "room": 99, "draining": false}'
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_trial_that_a_server_may_have_is_given_to_no_other_one(tmp_path: Path) -> None:
    """Two programs would talk to one session."""
    async with mute_server() as mute, house(tmp_path) as here:
        other = [here.client.url]
        await here.submit("occupant", "sleep 1000")
        async with runner(tmp_path, [mute, *other], "touch {config}/ran") as using, asyncio.timeout(60):
            with pytest.raises(AgentServerError, match="cannot be reached"):
                await run(using)
        assert [one.id for one in await here.client.list(all=True)] == ["occupant"]
        await here.client.cancel("occupant")


async def test_a_trial_that_a_server_refuses_is_a_failed_set_up(tmp_path: Path) -> None:
    async with house(tmp_path) as here, runner(tmp_path, [here.client.url], "true") as using:
        using.runner = {**using.runner, "output_kb": 1 << 20}
        with pytest.raises(SetupError, match="output_kb"):
            await run(using)
        assert await here.client.list(all=True) == []


async def test_without_any_server_the_rollout_fails_as_infrastructure(tmp_path: Path) -> None:
    async with runner(tmp_path, ["http://127.0.0.1:9"], "true") as using:
        async with asyncio.timeout(60):
            with pytest.raises(AgentServerError, match="no agent server can be reached"):
                await run(using)
