"""The gateway benchmark's own parts: what they send and hear is HTTP, and what they count is what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import cycle

import httpx
import pytest

from benchmarks.workers import bare_proxy, mock_upstream
from benchmarks.workers.framing import Messages, body_of, message_size, request_bytes, response_bytes
from benchmarks.workers.http_load import Door, Pass, load
from loopwright.engines.http.client import HttpEngine
from loopwright.types import GenerateRequest, Sampling

SPEC = {"model": "m", "max_context": 99, "answer_ids": [5, 6], "answer_pieces": ["a", "b"], "prompt_ids": [1, 2, 3]}


@asynccontextmanager
async def listening(protocol: Callable[[], Messages]) -> AsyncIterator[int]:
    made: list[Messages] = []

    def connected() -> Messages:
        made.append(protocol())
        return made[-1]

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1]
        for one in made:
            assert one.transport is not None
            one.transport.abort()
        # Connections are closed by the event loop, a few turns later.
        await asyncio.sleep(0.05)


def mock() -> mock_upstream.Mock:
    return mock_upstream.Mock(mock_upstream.answers_of(SPEC))


def test_a_message_is_found_when_all_of_it_is_there():
    message = request_bytes("POST", "/x", {"a": "b"}, b"body")
    assert [message_size(message[:size]) for size in (10, len(message) - 1)] == [None, None]
    assert message_size(message + b"next") == len(message)
    assert body_of(message) == b"body"
    with pytest.raises(ValueError, match="unknown length"):
        message_size(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")


async def test_the_mock_speaks_both_protocols_and_the_proxy_passes_them_on():
    async with listening(mock) as port, listening(lambda: bare_proxy.Client(port)) as proxy:
        async with HttpEngine.connect(f"http://127.0.0.1:{port}", None) as engine:
            generation = await engine.generate(GenerateRequest("a/0", (1, 2), Sampling()))
            assert (generation.ids, generation.versions) == ((5, 6), (0, 0))
            assert (await engine.model()).max_context == 99
        for where in (port, proxy):
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"http://127.0.0.1:{where}/v1/chat/completions", json={})
            assert answer.json()["choices"][0]["message"]["content"] == "ab"


async def test_load_counts_every_answer():
    async with listening(mock) as port:
        measured = await load(port, [Door("/v1/chat/completions")] * 3, cycle([b"{}"]), 0.05)
    assert len(measured.latencies) >= 3
    assert measured.rate == pytest.approx(len(measured.latencies) / measured.seconds)
    assert 0 < measured.percentile(0.5) <= measured.percentile(0.99) <= measured.seconds


async def test_an_answer_that_is_none_ends_the_measurement():
    class Refusing(Messages):
        def message(self, message: bytes) -> None:
            self.send(response_bytes(b'{"error": "no"}'))

    async with listening(Refusing) as port:
        with pytest.raises(RuntimeError, match="answered with"):
            await load(port, [Door("/x")], cycle([b"{}"]), 0.05)


def test_percentiles():
    assert Pass([0.3, 0.1, 0.2], 1.0).percentile(0.5) == 0.2
    assert Pass([0.3, 0.1, 0.2], 1.0).percentile(0.99) == 0.3
