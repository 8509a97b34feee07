"""The engine over HTTP: vLLM's routes, who may use them, and what happens when either side goes away."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from counting import CountingEngine
from served_engine import KEY, served

from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.connection import Connections
from loopwright.engines.http.server import engine_app
from loopwright.engines.http.wire import GENERATE
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import EngineError, EngineLostError, UnanswerableError, WeightsError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.ports import OnPart
from loopwright.serve.listen import listening
from loopwright.testing import ScriptedEngine, UnhurriedForward
from loopwright.testing.weight_file import weight_file
from loopwright.types import GenerateRequest, Generation, PauseMode, Sampling

BODY = {"token_ids": [0, 1, 2], "sampling_params": {"max_tokens": 3}}


def ask(tokens: int = 40, id: str = "a/0") -> GenerateRequest:
    return GenerateRequest(id, (0, 1, 2), Sampling(max_new_tokens=tokens))


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine(seconds=0.001)


@pytest.fixture
async def http(engine: CountingEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client that is not ours, with the right key."""
    async with (
        listening(engine_app(engine), key=KEY) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        yield client


# The routes.


async def test_generate_answers_as_vllm_does(http: httpx.AsyncClient) -> None:
    answer = (await http.post(GENERATE, json=BODY)).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == [3, 4, 5]
    assert choice["logprobs"]["content"] == [{"token_id": token, "logprob": -0.5} for token in (3, 4, 5)]
    assert choice["weight_versions"] == [{"version": 0, "start": 0, "end": 3}]
    assert choice["finish_reason"] == "length"


async def test_generate_streams_events_and_the_last_tokens_come_with_the_end(http: httpx.AsyncClient) -> None:
    body = {"token_ids": [0], "sampling_params": {"max_tokens": 10}, "stream": True}
    text = (await http.post(GENERATE, json=body)).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert [len(choice["token_ids"]) for choice in choices] == [4, 4, 2]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]


async def test_pausing_and_versions(http: httpx.AsyncClient, engine: CountingEngine) -> None:
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/is_paused")).json() == {"is_paused": False}
    for mode in ("abort", "keep", "wait"):
        assert (await http.post(f"/pause?mode={mode}")).status_code == 200
        assert (await http.get("/is_paused")).json() == {"is_paused": True}
        assert (await http.post("/resume")).status_code == 200
    assert (await http.post("/weights", json={"version": 3, "in_place": True})).json() == {"version": 3}
    assert (await http.get("/version")).json() == {"version": 3}
    assert engine.version == 3


async def test_requests_are_aborted_by_id(http: httpx.AsyncClient, engine: CountingEngine) -> None:
    body = BODY | {"request_id": "mine", "sampling_params": {"max_tokens": 5000}}
    asking = asyncio.create_task(http.post(GENERATE, json=body))
    await until(lambda: "mine" in engine._live)
    await http.post("/abort_requests", json={"request_ids": ["mine", "unknown"]})
    assert (await asking).json()["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (GENERATE, b"{", "no JSON"),
        (GENERATE, b"[]", "no JSON object"),
        (GENERATE, b'{"token_ids": ["a"]}', "token_ids"),
        ("/pause?mode=nap", b"", "no mode 'nap'"),
        ("/abort_requests", b'{"request_ids": 5}', "request_ids"),
        ("/weights", b'{"version": "new"}', "version"),
        ("/weights", b'{"version": 1, "file": {"path": "x", "checksum": "y"}}', "tensors"),
        ("/weights", b'{"version": 1}', "file"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(
    http: httpx.AsyncClient, path: str, body: bytes, words: str
) -> None:
    answer = await http.post(path, content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["remedy"]


# The door (S3).


async def test_without_the_key_nothing_but_health_is_answered(http: httpx.AsyncClient) -> None:
    for key in ("", "Bearer wrong", f"Basic {KEY}", KEY):
        headers = {"authorization": key}
        assert (await http.get("/version", headers=headers)).status_code == 401
        assert (await http.post(GENERATE, json=BODY, headers=headers)).status_code == 401
        assert (await http.get("/health", headers=headers)).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
async def test_another_host_name_is_refused(http: httpx.AsyncClient, host: str) -> None:
    """A web page whose name was made to point here is not let in, not even to /health."""
    for path in ("/version", "/health"):
        assert (await http.get(path, headers={"host": host})).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "[::1]:8000"])
async def test_loopback_names_are_answered(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/version", headers={"host": host})).status_code == 200


async def test_a_browser_has_nothing_to_ask(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version", headers={"origin": "http://127.0.0.1"})).status_code == 403


# When somebody goes away.


async def test_a_client_that_goes_away_frees_what_it_held(engine: CountingEngine) -> None:
    async with served(engine) as client:
        call = asyncio.create_task(client.generate(ask(10_000)))
        await until(lambda: engine._live)
        call.cancel()
        await until(lambda: not engine._live)
        assert len((await client.generate(ask(6))).ids) == 6


async def test_a_whole_answer_is_cancelled_too_when_nobody_waits_for_it(
    http: httpx.AsyncClient, engine: CountingEngine
) -> None:
    body = BODY | {"sampling_params": {"max_tokens": 10_000}}
    call = asyncio.create_task(http.post(GENERATE, json=body))
    await until(lambda: engine._live)
    call.cancel()
    await until(lambda: not engine._live)


async def test_tokens_arrive_before_the_answer_is_whole(engine: CountingEngine) -> None:
    parts: list[Generation] = []
    async with served(engine) as client:
        whole = await client.generate(ask(10), parts.append)
    assert [part.ids for part in parts] == [(3, 4, 5, 6), (7, 8, 9, 10)]
    assert whole.ids == tuple(range(3, 13))


async def test_a_paused_stream_is_no_lost_one(engine: CountingEngine) -> None:
    async with served(engine, silence_seconds=0.2) as client:
        call = asyncio.create_task(client.generate(ask(20)))
        await until(lambda: engine._live)
        await client.pause(PauseMode.KEEP)
        await asyncio.sleep(0.5)
        await client.resume()
        assert len((await call).ids) == 20


@pytest.mark.parametrize("on_part", [None, lambda part: None], ids=["whole", "streamed"])
async def test_an_engine_that_is_silent_but_well_is_waited_for(engine: CountingEngine, on_part: Any) -> None:
    app = engine_app(engine, beat_seconds=60)
    async with (
        listening(app, key=None) as port,
        HttpEngine.connect(f"http://127.0.0.1:{port}", None, silence_seconds=0.1) as client,
    ):
        await client.pause(PauseMode.KEEP)
        call = asyncio.create_task(client.generate(ask(20), on_part))
        await asyncio.sleep(0.4)
        assert not call.done()
        await client.resume()
        assert len((await call).ids) == 20


@asynccontextmanager
async def played(play: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server whose connections are each `played`. They have ended when this ends."""
    live = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal live
        live += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await play(reader, writer)
        writer.close()
        live -= 1

    async with await asyncio.start_server(connected, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await until(lambda: not live)


def http_bytes(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


VERSION = http_bytes(b'{"version": 4}')


@pytest.mark.parametrize("on_part", [None, lambda part: None], ids=["whole", "streamed"])
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"], ids=["mute", "begun"])
async def test_an_engine_that_shows_no_sign_of_life_is_lost(on_part: Any, head: bytes) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says its version, and after that at most the beginning of an answer."""
        if b"/version" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(VERSION)
            await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await reader.read()

    async with played(play) as url, HttpEngine.connect(url, None, silence_seconds=0.1) as client:
        with pytest.raises(EngineLostError, match="says nothing"):
            await client.generate(ask(), on_part)


def saying(answer: bytes) -> AbstractAsyncContextManager[str]:
    """A server that gives one answer to whatever is generated."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for said in (VERSION, http_bytes(answer)):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
        await reader.read()

    return played(play)


@pytest.mark.parametrize("on_part", [None, lambda part: None], ids=["whole", "streamed"])
@pytest.mark.parametrize("answer", [b"{", b'data: {"choices": [NaN]}\n\n'])
async def test_an_answer_that_is_no_json_is_an_engines_error(on_part: Any, answer: bytes) -> None:
    async with saying(answer) as url, HttpEngine.connect(url, None) as client:
        with pytest.raises(EngineError, match=r"no JSON|broke off"):
            await client.generate(ask(), on_part)


async def test_a_stream_that_ends_before_its_answer_is_a_lost_engine() -> None:
    """So a proxy tells that the engine behind it has died: whoever asks can go on from the tokens that came."""
    async with saying(b": the answer is under way\n\n") as url, HttpEngine.connect(url, None) as client:
        with pytest.raises(EngineLostError, match="broke off"):
            await client.generate(ask(), lambda part: None)


@pytest.mark.parametrize(
    ("on_part", "before"), [(None, b""), (lambda part: None, b"data: ")], ids=["whole", "streamed"]
)
async def test_an_answer_without_its_logprobs_is_an_engines_error(on_part: Any, before: bytes) -> None:
    answer = before + b'{"choices": [{"token_ids": [1], "logprobs": {}, "finish_reason": "stop"}]}\n\n'

    async with saying(answer) as url, HttpEngine.connect(url, None) as client:
        with pytest.raises(EngineError, match="cannot be read: logprobs in the choice"):
            await client.generate(ask(), on_part)


async def test_a_connection_is_used_again_and_calls_at_once_have_one_each() -> None:
    made = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while await reader.readuntil(b"\r\n\r\n"):
            await asyncio.sleep(0.05)
            writer.write(VERSION)

    async with played(play) as url, HttpEngine.connect(url, None) as client:
        for _ in range(3):
            await client.resume()
        assert made == 1
        await asyncio.gather(*(client.resume() for _ in range(3)))
        assert made == 3


async def test_an_error_in_the_middle_of_a_stream_arrives_as_what_it_is(engine: CountingEngine) -> None:
    parts: list[Generation] = []
    async with served(engine) as client:
        call = asyncio.create_task(client.generate(ask(10_000), parts.append))
        await until(lambda: parts)
        engine.dead.set()
        with pytest.raises(EngineError, match="the engine is dead"):
            await call


async def test_an_error_after_nothing_but_a_beat_arrives_as_what_it_is_too() -> None:
    class Failing(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
            await self.dead.wait()
            raise EngineError("out of memory", remedy="use less")

    engine = Failing()
    async with (
        listening(engine_app(engine, beat_seconds=0.001), key=None) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        http.stream("POST", GENERATE, json=BODY | {"stream": True}) as answer,
    ):
        engine.dead.set()
        text = (await answer.aread()).decode()
    assert text.startswith(":"), "a beat came first"
    events = [line for line in text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[0].removeprefix("data: "))["error"]["message"] == "out of memory"
    assert events[1:] == ["data: [DONE]"]


@pytest.mark.parametrize("on_part", [None, lambda part: None], ids=["whole", "streamed"])
async def test_a_request_that_no_engine_can_answer_is_told_from_an_engine_that_failed(on_part: Any) -> None:
    class Strict(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
            raise UnanswerableError("no such token", remedy="render anew")

    async with served(Strict()) as client:
        with pytest.raises(UnanswerableError, match="no such token"):
            await client.generate(ask(), on_part)


@pytest.mark.parametrize(("status", "is_the_requests"), [(400, True), (422, True), (500, False), (429, False)])
async def test_the_status_of_another_server_tells_whose_fault_it_is(status: int, is_the_requests: bool) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refusal = f"HTTP/1.1 {status} No\r\ncontent-length: 2\r\n\r\n{{}}".encode()
        for said in (VERSION, refusal):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
        await reader.read()

    async with played(play) as url, HttpEngine.connect(url, None) as client:
        with pytest.raises(EngineError) as caught:
            await client.generate(ask())
    assert isinstance(caught.value, UnanswerableError) is is_the_requests


async def test_a_server_that_is_gone_is_a_lost_engine(engine: CountingEngine) -> None:
    async with served(engine) as client:
        url = client._connections.url
    with pytest.raises(EngineLostError, match="cannot be reached"):
        async with HttpEngine.connect(url, KEY):
            pass


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_system_watches_whether_a_connection_has_another_end(factory: Callable[[], Any]) -> None:
    async def look() -> None:
        async with served(CountingEngine()) as client:
            assert isinstance(client._connections, Connections)
            (connection,) = client._connections._free
            assert connection._transport is not None
            end = connection._transport.get_extra_info("socket")
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(look())


@pytest.mark.parametrize("on_part", [None, lambda part: None])
async def test_a_server_that_is_ended_before_the_first_token_is_a_lost_engine(
    on_part: OnPart | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answered 500, which nobody takes for an engine that may come back."""
    monkeypatch.setattr("loopwright.serve.listen.GRACE_SECONDS", 0.05)
    slow = ScriptedEngine([[5]], seconds=lambda request: 60.0)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(engine_app(slow), key=None))
        async with HttpEngine.connect(f"http://127.0.0.1:{port}", None) as client:
            call = asyncio.create_task(client.generate(ask(), on_part))
            await until(lambda: slow.requests)
            await stack.aclose()
            with pytest.raises(EngineLostError):
                await call


async def test_a_connection_that_was_reset_meanwhile_is_made_anew() -> None:
    answers, ended = 0, 0

    async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the first request of a connection, and resets it at the second, as a server may at any time."""
        nonlocal answers, ended
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"version": 4}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        answers += 1
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        ended += 1

    server = await asyncio.start_server(resetting, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with HttpEngine.connect(f"http://127.0.0.1:{port}", None) as client:
            await client.resume()
        await until(lambda: ended == answers)
    assert answers == 2


# Weights.


@pytest.fixture
async def over_http(loaded: LoadedModel) -> AsyncIterator[HttpEngine]:
    with ComputeThread() as compute:
        unhurried = replace(loaded, forward=UnhurriedForward(loaded.forward))
        async with TorchEngine(unhurried, compute) as engine, served(engine) as client:
            yield client


async def test_new_weights_are_what_samples_after_them(
    over_http: HttpEngine, loaded: LoadedModel, plain: Any, tmp_path: Path
) -> None:
    """T4: tokens before and after an update, compared with transformers' own under each version."""
    from plain_model import Sample, put

    put(loaded.model, plain.versions[1])
    file = weight_file(dict(loaded.model.named_parameters()), tmp_path / "w.safetensors")
    put(loaded.model, plain.versions[0])
    request = GenerateRequest("a/0", (5, 6, 7), Sampling(max_new_tokens=300, temperature=0.7, seed=3))
    parts: list[Generation] = []
    call = asyncio.create_task(over_http.generate(request, parts.append))
    await until(lambda: parts)
    await over_http.pause(PauseMode.KEEP)
    await over_http.load(1, file)
    await over_http.resume()
    generation = await call
    assert set(generation.versions) == {0, 1}
    plain.check([Sample(request, generation.ids, generation.logprobs, generation.versions)])


async def test_a_deleted_file_is_a_clear_refusal_and_nothing_changes(
    over_http: HttpEngine, loaded: LoadedModel, tmp_path: Path
) -> None:
    file = weight_file(dict(loaded.model.named_parameters()), tmp_path / "w.safetensors")
    os.unlink(file.path)
    before = await over_http.generate(ask(6))
    with pytest.raises(WeightsError, match="nothing was changed"):
        await over_http.load(1, file)
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=over_http._connections.url, headers=headers) as http:
        response = await http.post("/weights", json={"version": 1} | _manifest(file.path))
    assert response.status_code == 422
    assert (over_http.version, await over_http.generate(ask(6))) == (0, before)


def _manifest(path: str) -> dict[str, Any]:
    return {"file": {"path": path, "bytes": 1, "tensors": {}, "checksum": "crc32:0"}}
