"""The door of a run: others sample with its engines, and can do nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from counting import CountingEngine
from served_engine import CARD, KEY, behind_door

from loopwright.build import gateway as build_gateway
from loopwright.build.door import open_door
from loopwright.config import DoorConfig
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.door import DoorSampler, door_app
from loopwright.engines.http.server import engine_app
from loopwright.engines.http.wire import GENERATE
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.worker import embedded
from loopwright.errors import EngineError, OutOfTimeError
from loopwright.gateway.registration import RunModel
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.serve.listen import listening
from loopwright.types import FinishReason, GenerateRequest, Generation, PauseMode, Sampling, Thinking

LONG = 100_000


def ask(tokens: int = 8, id: str = "a/0", seconds: float | None = None) -> GenerateRequest:
    return GenerateRequest(id, (0, 1, 2), Sampling(max_new_tokens=tokens), seconds=seconds)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine(seconds=0.001)


@pytest.fixture
async def controller(engine: CountingEngine) -> AsyncIterator[RolloutController]:
    async with RolloutController.open([embedded(engine)]) as controller:
        yield controller


@pytest.fixture
async def door(controller: RolloutController) -> AsyncIterator[HttpEngine]:
    async with behind_door(controller) as client:
        yield client


@pytest.fixture
async def http(controller: RolloutController) -> AsyncIterator[httpx.AsyncClient]:
    """A client that is not ours, with the right key."""
    async with (
        listening(door_app(controller, CARD, beat_seconds=0.05), key=KEY) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        yield client


async def test_it_has_the_generating_routes(http: httpx.AsyncClient, controller: RolloutController) -> None:
    await controller.load(5)
    answer = (await http.post(GENERATE, json={"token_ids": [0], "sampling_params": {"max_tokens": 2}})).json()
    assert answer["choices"][0]["token_ids"] == [1, 2]
    assert answer["held"] == [0.0, 0.0]
    assert (await http.get("/version")).json() == {"version": 5, "held_seconds": 0.0}
    assert (await http.get("/health", headers={"authorization": ""})).json() == {"version": 5, "held_seconds": 0.0}
    assert (await http.get("/v1/models")).json()["data"][0]["root"] == CARD.source


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/is_paused"),
        ("POST", "/weights"),
        ("POST", "/lease"),
        ("DELETE", "/lease"),
    ],
)
async def test_what_belongs_to_the_run_is_refused(
    http: httpx.AsyncClient, engine: CountingEngine, method: str, path: str
) -> None:
    answer = await http.request(method, path, json={"version": 9, "run": "b", "lineage": 0, "seconds": 9})
    assert answer.status_code == 403
    assert "belong to the run" in answer.json()["error"]["message"]
    assert (engine.version, engine._frozen) == (0, None)


async def test_it_has_a_key(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version", headers={"authorization": "Bearer another"})).status_code == 401


async def test_only_requests_of_the_door_are_aborted(
    door: HttpEngine, controller: RolloutController, engine: CountingEngine
) -> None:
    own = asyncio.create_task(controller.generate(ask(LONG, "same/0")))
    through = asyncio.create_task(door.generate(ask(LONG, "same/0")))
    await until(lambda: len(engine._live) == 2)
    await door.abort("nobody")
    await door.abort("same/0")
    assert (await through).finish is FinishReason.ABORT
    await door.abort("same/0")
    assert not own.done()
    own.cancel()


@pytest.mark.parametrize("on_part", [None, lambda part: None], ids=["whole", "streamed"])
async def test_the_callers_seconds_are_counted_by_the_door(
    door: HttpEngine, controller: RolloutController, engine: CountingEngine, on_part: Any
) -> None:
    with pytest.raises(OutOfTimeError, match=r"within the 0\.1 s") as out:
        await door.generate(ask(LONG, seconds=0.1), on_part)
    assert out.value.facts["held"] == (0.0, 0.0)
    await until(lambda: not engine._live)


async def test_the_seconds_of_a_plain_call_end_it_with_408(http: httpx.AsyncClient) -> None:
    body = {"token_ids": [0], "sampling_params": {"max_tokens": LONG}, "seconds": 0.05}
    answer = await http.post(GENERATE, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (408, "OutOfTimeError")
    assert answer.json()["held"] == [0.0, 0.0]
    refused = await http.post(GENERATE, json=body | {"seconds": -1})
    assert refused.status_code == 400
    assert "seconds" in refused.json()["error"]["message"]


@pytest.mark.parametrize("on_part", [None, lambda part: None], ids=["whole", "streamed"])
async def test_held_time_is_told_while_the_call_is_out_and_not_charged(
    door: HttpEngine, controller: RolloutController, on_part: Any
) -> None:
    await controller.pause(PauseMode.KEEP)
    call = asyncio.create_task(door.generate(ask(seconds=1.0), on_part))
    await until(lambda: door.held_seconds() > 1.2)
    assert not call.done(), "its seconds were not counted while the engines were held"
    told = door.held_seconds()
    await controller.load(1)
    await controller.resume()
    answer = await call
    assert answer.held is not None
    assert answer.held[1] - answer.held[0] >= told - answer.held[0]
    assert door.held_seconds() == answer.held[1] >= told
    assert door.version == 1
    assert len(answer.ids) == 8


async def test_a_beat_of_a_stream_tells_the_clock(http: httpx.AsyncClient, controller: RolloutController) -> None:
    await controller.pause(PauseMode.KEEP)
    body = {"token_ids": [0], "sampling_params": {"max_tokens": 2}, "stream": True}
    async with http.stream("POST", GENERATE, json=body) as stream:
        lines = stream.aiter_lines()
        readings: list[Any] = []
        while len(readings) < 3:
            line = await anext(lines)
            readings += [json.loads(line[2:])] if line else []
        await controller.resume()
        rest = [line async for line in lines if line.startswith("data: {")]
    held = [reading["held_seconds"] for reading in readings]
    assert held == sorted(held)
    assert held[0] < held[-1]
    assert json.loads(rest[-1].removeprefix("data: "))["held"][1] >= held[-1]


async def test_an_answer_goes_on_when_its_engine_dies(quick_restarts: None) -> None:
    from counting import Nursery

    # It takes 0.8 s in all, so that it dies in the middle of its answer also on a busy machine.
    nursery = Nursery(seconds=0.02)
    parts: list[Generation] = []
    async with RolloutController.open([nursery.launch]) as controller, behind_door(controller) as door:
        call = asyncio.create_task(door.generate(ask(40), parts.append))
        await until(lambda: parts)
        nursery.engines[-1].dead.set()
        assert (await call).ids == tuple(range(3, 43))
        assert len(nursery.engines) == 2


async def test_an_engine_tells_no_held_seconds(engine: CountingEngine) -> None:
    from served_engine import served

    async with served(engine) as client:
        assert (await client.generate(ask(seconds=1e-9))).held is None, "an engine does not count its caller's time"
        assert client.held_seconds() == 0.0


async def test_opening_it_gives_url_key_and_port(controller: RolloutController) -> None:
    async with open_door(DoorConfig(), controller, CARD) as one, open_door(DoorConfig(), controller, CARD) as other:
        assert one.url == f"http://127.0.0.1:{one.port}"
        assert one.key != other.key
        async with HttpEngine.connect(one.url, one.key) as client:
            assert await client.model() == CARD
        with pytest.raises(EngineError, match="key is missing or wrong"):
            async with HttpEngine.connect(one.url, other.key):
                pass


async def test_it_is_told_to_others_under_the_name_that_they_know(controller: RolloutController) -> None:
    config = DoorConfig(advertise_url="http://run.example/door")
    async with open_door(config, controller, CARD) as door:
        assert door.url == "http://run.example/door"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.port}") as http:
            headers = {"authorization": f"Bearer {door.key}"}
            assert (await http.get("/version", headers={**headers, "host": "run.example"})).status_code == 200
            assert (await http.get("/version", headers={**headers, "host": "evil.example"})).status_code == 403


async def test_callers_without_sessions_use_all_engines() -> None:
    """The part of an id before its last slash names a session, which stays with its engine."""
    engines = [CountingEngine(seconds=0.001), CountingEngine(seconds=0.001)]
    async with RolloutController.open([embedded(one) for one in engines]) as controller:
        sampler = DoorSampler(controller)
        ids = ("a", "b", "c", "d", "", "", "s/0", "s/1")
        calls = [asyncio.create_task(sampler.generate(ask(LONG, id))) for id in ids]
        await until(lambda: sum(len(one._live) for one in engines) == len(ids))
        assert sorted(len(one._live) for one in engines) == [3, 5]
        of_session = [one for one in engines if "door/s/0" in one._live]
        assert [one for one in engines if "door/s/1" in one._live] == of_session
        await sampler.abort("a")
        assert (await calls[0]).finish is FinishReason.ABORT
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


async def test_held_seconds_are_heard_while_no_call_is_out(controller: RolloutController) -> None:
    """Otherwise the next session's first call would seem to be held for all of them."""
    async with behind_door(controller) as client, client.hearing(0.01):
        await controller.pause(PauseMode.KEEP)
        await until(lambda: client.held_seconds() > 0.1)
        await controller.load(3)
        await controller.resume()
        await until(lambda: (client.version, client.held_seconds()) == (3, controller.held_seconds()))


async def test_a_gateway_does_not_tell_a_new_session_what_was_held_before_it(
    controller: RolloutController, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("load_tokenizer", "make_renderer"):
        monkeypatch.setattr(build_gateway, name, lambda *given: None)
    monkeypatch.setattr(build_gateway, "HEARING_SECONDS", 0.01)
    async with open_door(DoorConfig(), controller, CARD) as door:
        model = RunModel(door.address, "tiny", "tiny", None, 100, "auto", Thinking.KEEP)
        async with build_gateway.run_model(model) as (served, held):
            await controller.pause(PauseMode.KEEP)
            await until(lambda: controller.held_seconds() > 0.3)
            await controller.resume()
            await until(lambda: held() == controller.held_seconds())
            before = held()
            await served.engine.generate(ask(4))
            assert held() == before


async def test_a_prompt_that_the_model_does_not_have_is_a_400(loaded: LoadedModel) -> None:
    """Also if the engine is in another process."""
    with ComputeThread() as compute:
        async with (
            TorchEngine(loaded, compute) as engine,
            listening(engine_app(engine), key=KEY) as port,
            HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as elsewhere,
        ):
            for place in (engine, elsewhere):
                async with RolloutController.open([embedded(place)]) as controller:
                    app = door_app(controller, CARD)
                    async with listening(app, key=KEY) as own, httpx.AsyncClient() as http:
                        answer = await http.post(
                            f"http://127.0.0.1:{own}{GENERATE}",
                            json={"token_ids": [10**6]},
                            headers={"authorization": f"Bearer {KEY}"},
                        )
                assert answer.status_code == 400
                assert "the prompt must be" in answer.json()["error"]["message"]
