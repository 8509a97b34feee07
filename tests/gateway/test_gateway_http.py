"""What clients may do on the way: compress, wait for a 100, write paths in their own manner, send two keys."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import pytest
import zstandard
from gateway_house import KEY, house

from loopwright.errors import RefusedError
from loopwright.gateway.encoding import decoded

HI = [{"role": "user", "content": "Hi"}]
PATH = "/session-1/v1/chat/completions"
BODY = json.dumps({"messages": HI}).encode()
HUGE_WINDOW = bytes.fromhex("28b52ffd0098") + bytes.fromhex("010000")
"""A zstd frame with a window of 512 MiB and one empty block."""


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress), ("identity", bytes)],
)
async def test_compressed_bodies_are_read(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    async with house(["Hello."]) as h:
        await h.session()
        response = await h.http.post(PATH, content=encode(BODY), headers={"content-encoding": encoding})
        assert response.json()["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("br", BODY, 415),
        ("gzip", BODY, 400),
        ("gzip", gzip.compress(BODY)[:-9], 400),
        ("gzip", b"", 400),
        ("zstd", BODY, 400),
        ("zstd", zstandard.compress(BODY)[:-3], 400),
        ("zstd", b"", 400),
        ("zstd", HUGE_WINDOW, 400),
        ("gzip", gzip.compress(BODY) + gzip.compress(BODY), 400),
        ("zstd", zstandard.compress(BODY) + zstandard.compress(BODY), 400),
    ],
    # Named, because gzip writes the time into what it compresses, and every worker must collect the same tests.
    ids=[
        "unknown",
        "not gzip",
        "cut off",
        "empty",
        "not zstd",
        "zstd cut off",
        "zstd empty",
        "zstd too wide",
        "two gzips",
        "two zstds",
    ],
)
async def test_bodies_that_cannot_be_read_are_refused(encoding: str, body: bytes, status: int) -> None:
    async with house([]) as h:
        await h.session()
        response = await h.http.post("/session-1/v1/messages", content=body, headers={"content-encoding": encoding})
        assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_a_small_body_that_grows_is_cut_off(encoding: str, encode: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RefusedError) as refused:
        decoded(encode(b" " * 5000), encoding, 4999)
    assert refused.value.facts["status"] == 413
    assert decoded(encode(b" " * 5000), encoding, 5000) == b" " * 5000


async def test_a_client_that_waits_for_a_100_gets_one() -> None:
    async with house(["Hello."]) as h, asyncio.timeout(10):
        await h.session()
        reader, writer = await asyncio.open_connection("127.0.0.1", h.gateway.port)
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n"
        writer.write(f"{head}content-length: {len(BODY)}\r\nexpect: 100-continue\r\n\r\n".encode())
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(BODY)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/sessions/session-1//v1/chat/completions",
        "//session-1/v1//chat/completions/",
        "/session-1/v1/v1/chat/completions",
        "/session-1/chat/completions?beta=true",
    ],
)
async def test_paths_may_be_put_together_carelessly(path: str) -> None:
    async with house(["Hello."]) as h:
        await h.session()
        assert (await h.http.post(f"{h.gateway.base_url}{path}", content=BODY)).status_code == 200


async def test_one_of_two_keys_suffices() -> None:
    async with house(["Hello."]) as h:
        key = (await h.post("/sessions/session-1", {})).json()["key"]
        for bearer, other, status in ((key, "sk-old", 200), ("sk-old", key, 200), ("sk-old", "sk-old", 401)):
            headers = {"authorization": f"Bearer {bearer}", "x-api-key": other}
            assert (await h.http.post(PATH, content=BODY, headers=headers)).status_code == status


async def test_every_answer_names_its_request() -> None:
    async with house(["Hello."] * 2) as h:
        await h.session()
        answered = await h.post(PATH, {"messages": HI})
        streamed = await h.post("/session-1/v1/messages", {"messages": HI, "max_tokens": 9, "stream": True})
        refused = await h.post(PATH, {})
        ids = [response.headers["x-request-id"] for response in (answered, streamed, refused)]
        assert len(set(ids)) == 3
        assert answered.json()["id"] == f"chatcmpl-{ids[0]}"
        assert streamed.headers["request-id"] == ids[1]


async def test_a_response_can_be_fetched_and_a_prompt_counted() -> None:
    async with house(["Hello."]) as h, h.openai(await h.session()) as client:
        given = await client.responses.create(model="m", input="Hi")
        fetched = await client.responses.retrieve(given.id)
        assert (fetched.output, fetched.usage) == (given.output, given.usage)
        counted = await client.responses.input_tokens.count(model="m", input="Hi")
        assert given.usage is not None
        assert counted.input_tokens == given.usage.input_tokens
        gone = await h.http.get("/session-1/v1/responses/resp_gone")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_a_share_of_nothing_is_the_likeliest_token() -> None:
    async with house(["Hello."]) as h:
        await h.session()
        await h.chat("session-1", HI, top_p=0)
        assert h.engine.requests[0].sampling.top_k == 1
