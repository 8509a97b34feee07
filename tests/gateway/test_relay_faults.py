"""Workers and engines of a relay that go wrong only in part: what is told, and what the others notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import relay_house as houses
from gateway_house import KEY
from relay_house import LetterEngine, counted, received, relay_house, tokenizer_folder, until

from loopwright.build import relay
from loopwright.build.relay import OfferedEngine, WorkerPlace, serve_worker
from loopwright.build.remote import RemoteEngine
from loopwright.build.serving import ServedModel
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.connection import Patience
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.http.server import engine_app
from loopwright.errors import EngineError, EngineLostError, ModelError, RefusedError
from loopwright.gateway.relay import dialer, endpoint
from loopwright.gateway.relay.endpoint import RelayEndpoint
from loopwright.gateway.relay.frames import FrameType
from loopwright.gateway.relay.hello import Hello, WorkerModel
from loopwright.gateway.relay.workers import RelayedWorker, RelayedWorkers
from loopwright.models.digest import model_digest
from loopwright.ports import OnPart
from loopwright.serve.guard import Message
from loopwright.serve.listen import listening
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import GenerateRequest, Generation, Sampling

ONE, OTHER = "1" * 64, "2" * 64


async def test_a_worker_that_has_stopped_reading_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine is dead, or its process is stopped, and the buffer to it is full: pings wait there too."""
    monkeypatch.setattr(endpoint, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(endpoint, "CLOSE_SECONDS", 0.1)
    said: list[Message] = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "bytes": Hello("one").frame().encoded()},
    ]
    stuck, heard = asyncio.Event(), 0

    async def receive() -> Message:
        if not said:
            await stuck.wait()
        return said.pop(0)

    async def send(message: Message) -> None:
        nonlocal heard
        heard += 1
        if heard > 2:  # It hears that it is accepted, and WELCOME.
            await stuck.wait()

    async def admit(hello: Hello, worker: RelayedWorker) -> None:
        pass

    async def nothing(*_: Any) -> None:
        pass

    workers = RelayedWorkers()
    scope = {"type": "websocket", "path": "/relay", "headers": [(b"authorization", b"Bearer " + KEY.encode())]}
    serving = asyncio.create_task(RelayEndpoint(nothing, workers, admit, key=KEY)(scope, receive, send))
    worker = workers.named("one")
    async with asyncio.timeout(5):
        await worker.connected()
        with pytest.raises(EngineLostError, match="it has read nothing for"):
            await worker.whole("GET", "/version", b"", Patience(60.0))
        await serving
    assert not worker.is_connected


class PoisonedEngine(LetterEngine):
    """It sends calls named `bad` away, as a proxy does with a 503."""

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if request.id.startswith("bad"):
            raise EngineLostError("the engine is not there: status 503", remedy="none: the test wants it so")
        return await super().generate(request, on_part)


async def test_an_engine_that_sends_one_call_away_keeps_its_others(tmp_path: Path) -> None:
    async with relay_house(tmp_path, wait_seconds=0.5) as house:
        worker = await house.worker("one", PoisonedEngine(pace=0.005))
        healthy = [asyncio.create_task(house.generate(f"good{number}/1", 100)) for number in range(3)]
        await until(lambda: worker.engine.counted >= 8)
        with pytest.raises(EngineLostError, match="503"):
            await house.generate("bad/1", 10)
        assert all(counted(answer, 100) for answer in await asyncio.gather(*healthy))
        assert len(worker.engine.requests) == 3, "no answer was cut"
        assert worker.connections == 1


async def test_a_call_that_an_engine_has_sent_away_goes_on_when_it_is_taken(tmp_path: Path) -> None:
    class Busy(LetterEngine):
        busy = 2

        async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
            self.busy -= 1
            if self.busy >= 0:
                raise EngineLostError("the engine is not there: status 503", remedy="none: the test wants it so")
            return await super().generate(request, on_part)

    async with relay_house(tmp_path) as house:
        worker = await house.worker("one", Busy())
        assert counted(await house.generate("a/0", 6), 6)
        assert worker.connections == 1


async def test_a_doors_lost_engine_is_not_lost_again_for_its_callers() -> None:
    """The run behind a door has tried its other engines. Only a relay's worker has one engine."""
    async with (
        listening(engine_app(PoisonedEngine()), key=KEY) as port,
        HttpEngine.connect(f"http://127.0.0.1:{port}", KEY) as client,
    ):
        with pytest.raises(EngineError) as raised:
            await client.generate(GenerateRequest("bad/1", (1,), Sampling(max_new_tokens=1)))
    assert not isinstance(raised.value, EngineLostError)


async def test_workers_with_other_weights_under_one_name_are_told_apart(tmp_path: Path) -> None:
    """Every finished run has a folder `export`."""
    async with relay_house(tmp_path) as house:
        await house.worker("one", digest=ONE)
        with pytest.raises(RefusedError, match=f"digest {ONE[:12]}, and not tiny .* digest {OTHER[:12]}"):
            await house.worker("two", digest=OTHER)
        await house.worker("three", digest=ONE)
        await house.worker("an-engine-elsewhere")


async def test_the_first_digest_counts_also_if_the_first_worker_has_none(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        await house.worker("an-engine-elsewhere")
        await house.worker("one", digest=ONE)
        with pytest.raises(RefusedError):
            await house.worker("two", digest=OTHER)


async def test_a_worker_that_loads_a_folder_tells_its_digest(tmp_path: Path, tiny_llama_folder: Path) -> None:
    model = ServedModel(
        str(tiny_llama_folder), tmp_path, "float32", 64, threads=None, max_batch=1, cache_tokens=256, native=False
    )
    with pytest.MonkeyPatch.context() as patched:
        async with relay_house(tmp_path) as house:
            patched.setattr(relay, "tokenizer_of", lambda source, cache: tiny_tokenizer())
            connected = asyncio.Event()
            place = WorkerPlace(house.url, KEY, "one")
            serving = asyncio.create_task(serve_worker(model, place, connected.set))
            await until(lambda: connected.is_set() or serving.done())
            right = WorkerModel(str(tiny_llama_folder), 64, 0, model_digest(tiny_llama_folder))
            for told, answer in [(replace(right, digest=OTHER), FrameType.REFUSED), (right, FrameType.WELCOME)]:
                async with house.socket() as socket:
                    await socket.send(Hello("by-hand", told).frame().encoded())
                    assert (await received(socket)).type is answer
            serving.cancel()
            await asyncio.wait((serving,))


async def fails_at_first(
    folder: Path, caplog: pytest.LogCaptureFixture, fail: Callable[[], Exception], reason: str
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialer, "LONGEST_PAUSE_SECONDS", 0.05)
        async with relay_house(folder) as house:

            def failing(source: str, cache: Path) -> Any:
                raise fail()

            patched.setattr(relay, "tokenizer_of", failing)
            worker = await house.worker("one", wait=False)
            await until(lambda: f"not connected to the gateway at {house.url}: {reason}" in caplog.text)
            assert f"a worker was refused: {reason}" in caplog.text
            patched.setattr(relay, "tokenizer_of", houses._tokenizer)
            await until(lambda: worker.connections or worker.dialling.done())
            assert worker.connections == 1


async def test_a_worker_hears_that_the_gateway_cannot_read_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def denied() -> Exception:
        return PermissionError(13, "Permission denied", "models/tiny")

    await fails_at_first(tmp_path, caplog, denied, "the gateway could not take worker one: PermissionError")


async def test_a_worker_waits_for_a_tokenizer_that_cannot_be_loaded_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> Exception:
        return ModelError("the hub is away", remedy="none: the test wants it so")

    await fails_at_first(tmp_path, caplog, away, "the hub is away")


async def test_an_answer_does_not_go_on_at_an_engine_that_has_loaded_other_weights_since(tmp_path: Path) -> None:
    behind = LetterEngine()
    card = ModelCard(str(tokenizer_folder()), houses.MAX_CONTEXT)
    async with (
        relay_house(tmp_path, wait_seconds=0.5) as house,
        listening(engine_app(behind, card=card), key=KEY) as port,
    ):
        url, connected = f"http://127.0.0.1:{port}", asyncio.Event()
        elsewhere = RemoteEngine(url, KEY, None, tmp_path)
        first = await house.worker("one", LetterEngine(pace=0.005))
        going = asyncio.create_task(house.generate("a/0", 60))
        await until(lambda: first.engine.counted >= 8)
        place = WorkerPlace(house.url, KEY, "two")
        serving = asyncio.create_task(serve_worker(elsewhere, place, connected.set))
        await until(lambda: connected.is_set() or serving.done())
        async with HttpEngine.connect(url, KEY) as owner:
            await owner.load(5)
        await first.end()
        try:
            with pytest.raises(EngineLostError, match="no worker that can answer"):
                await going
            assert behind.requests == []
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


async def test_a_worker_asks_its_engine_for_the_version_before_it_introduces_itself() -> None:
    engine = LetterEngine()

    async def card() -> ModelCard:
        return ModelCard("tiny", 64)

    async def hear() -> None:
        await engine.load(5)

    said = await OfferedEngine(engine, "one", card, hear).hello()
    assert said.model == WorkerModel("tiny", 64, 5)
