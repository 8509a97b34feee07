"""Engines that somebody else has started: the lease on their weights, and what happens when they go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from counting import CountingEngine
from served_engine import CARD, KEY

from loopwright.engines.attached import Attachment, attached_engine
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.http.server import engine_app
from loopwright.errors import BudgetError, EngineLostError, LeaseError, ModelError
from loopwright.serve.lease import LeaseHolder
from loopwright.serve.listen import listening
from loopwright.types import GenerateRequest, PauseMode, Sampling, WeightFile

RUN, OTHER = LeaseHolder("run", 0), LeaseHolder("other", 0)
FILE = WeightFile("/nowhere/weights", 1, "crc32:0", {})


def ask(tokens: int = 6) -> GenerateRequest:
    return GenerateRequest("a/0", (0, 1, 2), Sampling(max_new_tokens=tokens))


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def accept(url: str, card: ModelCard) -> None:
    assert card == CARD


def attachment(port: int, holder: LeaseHolder = RUN, **more: Any) -> Attachment:
    url = f"http://127.0.0.1:{port}"
    connect = partial(HttpEngine.connect, url, KEY)
    given = Attachment(url, connect, holder, accept, wait_seconds=5.0, lease_seconds=1.0)
    return replace(given, **more)


@asynccontextmanager
async def server(engine: CountingEngine, port: int = 0) -> AsyncIterator[int]:
    async with listening(engine_app(engine, card=CARD), port=port, key=KEY) as bound:
        yield bound


@asynccontextmanager
async def pool(*attachments: Attachment, **more: Any) -> AsyncIterator[RolloutController]:
    launches = [lambda one=one: attached_engine(one) for one in attachments]
    async with asyncio.timeout(20), RolloutController.open(launches, **more) as controller:
        yield controller


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine(seconds=0.001)


async def test_while_a_run_holds_it_nobody_else_changes_anything(engine: CountingEngine) -> None:
    async with server(engine) as port, pool(attachment(port)) as controller:
        await controller.load(1, FILE)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            http.headers["authorization"] = f"Bearer {KEY}"
            for path in ("/weights", "/pause", "/resume"):
                answer = await http.post(path, json={"version": 9, "in_place": True})
                assert answer.status_code == 409
                assert "run run (lineage 0) holds this server" in answer.json()["error"]["message"]
            assert (await http.request("DELETE", "/lease")).status_code == 409
            taken = await http.post("/lease", json={"run": "other", "lineage": 9, "seconds": 5})
            assert taken.status_code == 409
            body = {"token_ids": [0], "sampling_params": {"max_tokens": 1}}
            assert (await http.post("/inference/v1/generate", json=body)).status_code == 200
        with pytest.raises(LeaseError, match="holds this server"):
            async with pool(attachment(port, OTHER)):
                pass
        assert (engine.version, engine._frozen) == (1, None)


async def test_the_lease_outlives_its_seconds_by_heartbeats_and_ends_with_the_run(engine: CountingEngine) -> None:
    async with server(engine) as port:
        async with pool(attachment(port)):
            await asyncio.sleep(1.5)
            with pytest.raises(LeaseError):
                async with pool(attachment(port, OTHER)):
                    pass
        async with pool(attachment(port, OTHER)) as controller:
            assert (await controller.generate(ask())).ids == (3, 4, 5, 6, 7, 8)


async def test_a_run_that_was_killed_loses_it_after_its_seconds(engine: CountingEngine) -> None:
    async with server(engine) as port, HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as killed:
        await killed.lease(RUN, 0.2)
        await killed.pause(PauseMode.KEEP)
        await asyncio.sleep(0.25)
        async with pool(attachment(port, OTHER)) as controller:
            assert (await controller.generate(ask())).ids == (3, 4, 5, 6, 7, 8), "it was resumed"


async def test_the_resumed_run_takes_it_over_and_ends_what_was_left(engine: CountingEngine) -> None:
    async with server(engine) as port, HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as killed:
        await killed.lease(RUN, 60)
        left = asyncio.create_task(killed.generate(ask(100_000)))
        await until(lambda: engine._live)
        async with pool(attachment(port, LeaseHolder("run", 1))) as controller:
            assert len((await left).ids) < 100_000
            with pytest.raises(LeaseError, match="lineage 1"):
                await killed.load(7)
            with pytest.raises(LeaseError, match="lineage 1"):
                await killed.lease(RUN, 60)
            await controller.load(1)
        assert engine.version == 1


async def test_a_run_whose_lease_was_taken_over_ends_with_the_reason(engine: CountingEngine) -> None:
    async with server(engine) as port, pool(attachment(port)) as controller:
        async with HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as resumed:
            await resumed.lease(LeaseHolder("run", 1), 60)
        with pytest.raises(LeaseError, match=r"run run \(lineage 1\) holds"):
            await controller.pause(PauseMode.DRAIN)
        assert engine._frozen is None, "who does not hold it may not pause it"
        # The next heartbeat notices it, and ends the call that the pause above holds.
        with pytest.raises(LeaseError, match=r"run run \(lineage 1\) holds"):
            await controller.generate(ask())


async def test_leaving_resumes_it_and_does_not_end_it(engine: CountingEngine) -> None:
    async with server(engine) as port:
        async with pool(attachment(port)) as controller:
            await controller.load(3)
            await controller.pause(PauseMode.DRAIN)
            assert engine._frozen is PauseMode.DRAIN
        async with HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as client:
            assert len((await client.generate(ask())).ids) == 6
            assert client.version == 3


async def test_one_that_was_started_again_gets_the_newest_weights_before_it_answers(quick_restarts: None) -> None:
    """It goes away and comes back between two calls, so that nobody sees a connection break."""
    before, after = CountingEngine(), CountingEngine()
    deaths: list[str] = []
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        port = await first.enter_async_context(server(before))
        controller = await stack.enter_async_context(pool(attachment(port, lease_seconds=3600), on_death=deaths.append))
        await controller.load(4, FILE)
        await controller.generate(ask())
        await first.aclose()
        await stack.enter_async_context(server(after, port))
        assert (await controller.generate(ask())).versions == (4,) * 6
        assert after.loads == [(4, FILE)]
        assert len(deaths) == 1


async def test_one_that_is_away_is_waited_for_and_its_answer_goes_on(
    quick_restarts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.serve.listen.GRACE_SECONDS", 0.05)
    before, after = CountingEngine(seconds=0.02), CountingEngine()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        port = await first.enter_async_context(server(before))
        controller = await stack.enter_async_context(pool(attachment(port)))
        call = asyncio.create_task(controller.generate(ask(60)))
        await until(lambda: before.counted >= 12)
        await first.aclose()
        await controller.load(2, FILE)
        await stack.enter_async_context(server(after, port))
        answer = await call
        assert answer.ids == tuple(range(3, 63))
        assert set(answer.versions) == {0, 2}
        assert controller.held_seconds() > 0


async def test_one_that_does_not_come_is_given_up(engine: CountingEngine) -> None:
    async with server(engine) as port:
        pass
    with pytest.raises(BudgetError, match=rf"no engine answered at http://127.0.0.1:{port} within 0.3 s"):
        async with pool(attachment(port, wait_seconds=0.3)):
            pass


async def test_one_with_another_model_is_refused_and_left_alone(engine: CountingEngine) -> None:
    async def refuse(url: str, card: ModelCard) -> None:
        raise ModelError(f"{url} serves {card.source}", remedy="none: the test wants it so")

    async with server(engine) as port:
        with pytest.raises(ModelError, match="serves a-model"):
            async with pool(attachment(port, check=refuse)):
                pass
        async with pool(attachment(port, OTHER)):
            pass


async def test_a_call_for_an_earlier_start_of_the_server_is_a_lost_engine(engine: CountingEngine) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        port = await first.enter_async_context(server(engine))
        client = await stack.enter_async_context(HttpEngine.connect(f"http://127.0.0.1:{port}", KEY))
        await client.lease(RUN, 60)
        await client.generate(ask())
        await first.aclose()
        await stack.enter_async_context(server(engine, port))
        for call in (client.generate(ask()), client.lease(RUN, 60), client.load(1)):
            with pytest.raises(EngineLostError):
                await call
