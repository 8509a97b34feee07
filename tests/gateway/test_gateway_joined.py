"""Processes of a run that open sessions at a gateway with which its driver has registered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_house import KEY
from run_house import Door, ask, asks_twice, failure, gateway, managing, policies, registration, request, until, worker

from loopwright.errors import EngineLostError
from loopwright.gateway.client import GatewayAddress
from loopwright.gateway.remote_policy import RemoteSessionPolicies, join_remote_policies
from loopwright.gateway.server import Gateway, open_gateway_for_runs
from loopwright.gateway.store import MemoryRecords
from loopwright.types import FailureCause, Task


@asynccontextmanager
async def joined(url: str) -> AsyncIterator[RemoteSessionPolicies]:
    async with join_remote_policies(GatewayAddress(url, KEY, 10.0), registration(), beat_seconds=0.02) as made:
        yield made


@asynccontextmanager
async def in_memory() -> AsyncIterator[Gateway]:
    async with open_gateway_for_runs(Door().connect, MemoryRecords(), key=KEY, wait_seconds=10.0) as opened:
        yield opened


async def waits(task: Task, base_url: str, api_key: str) -> None:
    await ask(base_url, api_key)
    await asyncio.sleep(1000)


async def test_the_driver_deletes_the_sessions_of_another_process_when_their_rollout_is_stored() -> None:
    async with in_memory() as opened, policies(opened.base_url) as driver, joined(opened.base_url) as elsewhere:
        asked = request()
        made = await worker(elsewhere, asks_twice).run(asked)
        assert made.episode is not None
        assert len(made.episode.chains) == 2
        driver.take_over(asked, elsewhere.hand_over(asked))
        await asyncio.sleep(0.05)
        assert [session.outcome is not None for session in opened.sessions] == [True]
        driver.stored(asked.split, asked.key)
        await until(lambda: not list(opened.sessions))


async def test_the_sessions_of_a_lost_process_are_found_by_their_attempt() -> None:
    async with in_memory() as opened, policies(opened.base_url) as driver, joined(opened.base_url) as elsewhere:
        lost, other = request(1), request(2)
        runs = [asyncio.create_task(worker(elsewhere, waits).run(one)) for one in (lost, other)]
        await until(lambda: len([one for one in opened.sessions if one.first_call]) == 2)
        driver.forget_attempt(lost.split, lost.key)
        await until(lambda: len(list(opened.sessions)) == 1)
        (left,) = opened.sessions
        assert left.id.startswith(f"{registration().prefix}t2-")
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


async def test_a_gateway_that_was_started_again_ends_all_open_rollouts_at_once() -> None:
    async with in_memory() as opened, policies(opened.base_url), joined(opened.base_url) as elsewhere:
        run = asyncio.create_task(worker(elsewhere, waits).run(request()))
        await until(lambda: [one for one in opened.sessions if one.first_call])
        elsewhere.started_again(opened.base_url, 1)
        async with asyncio.timeout(5):
            assert failure(await run) == (FailureCause.INFRA, "EngineLostError")
        made = await worker(elsewhere, asks_twice).run(request(1))
        assert made.episode is not None


async def test_only_the_run_that_holds_the_gateway_is_told_of_its_sessions(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, joined(opened.base_url) as elsewhere:
        with pytest.raises(EngineLostError, match="not registered"):
            await elsewhere.client.hear()
        async with policies(opened.base_url), managing(opened) as http:
            assert (await elsewhere.client.hear())["sessions"] == {}
            assert set((await http.get("/run")).json()) == {"run", "lineage"}
