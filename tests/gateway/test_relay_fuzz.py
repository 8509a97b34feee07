"""Ten thousand frames that no worker sends: the relay does not crash, and no other worker is disturbed."""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from relay_house import LetterEngine, RelayHouse, counted, received, relay_house, until
from test_relay import hello
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import WebSocketException

from loopwright.engines.http.server import app_of
from loopwright.gateway.relay import dialer
from loopwright.gateway.relay.dialer import Dial, keep_dialled
from loopwright.gateway.relay.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    FrameType,
    RelayFrame,
    frame_in,
    frame_of_number,
    frame_of_words,
)
from loopwright.gateway.relay.hello import Hello, hello_of

FRAMES = 10_000


def made_up(dice: random.Random, asked: int) -> bytes | str:
    """A message: nonsense, or a frame with something wrong or untimely in it. `asked` is a request that is out."""
    kind = dice.choice([*FrameType, 0, 10, 255])
    request = dice.choice([asked, asked, 0, 1, 2, 3, (1 << 64) - 1, dice.getrandbits(64)])
    payload = dice.choice(
        [
            b"",
            dice.randbytes(dice.randrange(1, 64)),
            struct.pack(">I", dice.choice([0, 1, 99, 200, 500, 600, 2**32 - 1])),
            b'{"worker": "one", "model": null}',
            b'{"status": "x"}',
            b'data: {"choices": [{"token_ids": [1e400], "logprobs": {}}]}\n\n',
            b'data: {"choices": []}\n\ndata: {"error": 7}\n\n: {"version": "x", "held_seconds": -1}\n\n',
            b"data: {" * 9,
        ]
    )
    match dice.randrange(20):
        case 0:
            return dice.randbytes(dice.randrange(40))
        case 1:
            return "text " * dice.randrange(4)
        case 2:
            return struct.pack(">BBQ", dice.randrange(256), kind, request) + payload
    return struct.pack(">BBQ", PROTOCOL, kind, request) + payload


async def one_connection(house: RelayHouse, dice: random.Random, left: int) -> int:
    """Send at most `left` frames over a connection, until it is closed. Returns how many were sent."""
    sent = 0
    with suppress(WebSocketException, OSError):
        async with house.socket() as socket:
            if dice.random() < 0.9:
                await socket.send(hello("fuzzer"))
                await received(socket)
            # Something to answer: sometimes the relay asks this worker, and goes on at the good one.
            for sent in range(1, left + 1):
                await socket.send(made_up(dice, sent % 4))
                if sent % 8 == 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.001):
                            await socket.recv()
    return sent


@pytest.mark.real
async def test_no_frame_crashes_the_relay_or_disturbs_another_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dice, sent, number = random.Random(7), 0, 0
    async with relay_house(tmp_path) as house:
        good = await house.worker("good", LetterEngine(pace=0.001))
        calls: list[asyncio.Task[bool]] = []

        async def call(name: str) -> bool:
            return counted(await house.generate(name, 30), 30)

        while sent < FRAMES:
            if sum(not one.done() for one in calls) < 4:
                calls.append(asyncio.create_task(call(f"s{number}/0")))
                number += 1
            sent += await one_connection(house, dice, min(200, FRAMES - sent))
        assert await asyncio.gather(*calls) == [True] * len(calls)
        assert good.connections == 1
        assert counted(await house.generate("last/0", 9), 9)
        await until(lambda: good.engine.is_idle)
    assert not [record for record in caplog.records if record.exc_info], "nothing of ours has failed"


async def test_a_worker_survives_a_gateway_that_breaks_the_protocol() -> None:
    """It closes the connection, and dials again."""
    bad: list[bytes | str] = [
        "text",
        b"",
        bytes([9]) + bytes(20),
        RelayFrame(FrameType.WELCOME).encoded(),
        frame_of_number(FrameType.STATUS, 200, 900).encoded(),
        bytes(MAX_FRAME_BYTES + 1),
    ]
    ask = frame_of_words(FrameType.ASK, {"method": 7, "path": None, "headers": [1]}, 900)
    heard: list[Hello] = []
    answered = asyncio.Event()

    async def gateway(socket: ServerConnection) -> None:
        heard.append(hello_of(frame_in(await socket.recv())))
        await socket.send(RelayFrame(FrameType.WELCOME).encoded())
        # An odd request is answered by the app, and the connection goes on.
        for frame in (ask, RelayFrame(FrameType.END, 900)):
            await socket.send(frame.encoded())
        status = frame_in(await socket.recv())
        assert (status.type, status.number) == (FrameType.STATUS, 404)
        if bad:
            await socket.send(ask.encoded())
            await socket.send(bad.pop())
            await socket.wait_closed()
        else:
            answered.set()
            await socket.wait_closed()

    async def greet() -> Hello:
        return Hello("one")

    async with serve(gateway, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        dial = Dial(f"http://127.0.0.1:{port}", "a-key", app_of([]), greet)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(dialer, "LONGEST_PAUSE_SECONDS", 0.02)
            dialling = asyncio.create_task(keep_dialled(dial))
            async with asyncio.timeout(20):
                await answered.wait()
            dialling.cancel()
            await asyncio.wait((dialling,))
    assert heard == [Hello("one")] * 7


async def test_pauses_grow_until_a_connection_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "STEADY_SECONDS", 0.2)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    lives = [0.0, 0.0, 0.3, 0.0]
    done = asyncio.Event()

    async def gateway(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(RelayFrame(FrameType.WELCOME).encoded())
        if lives:
            await asyncio.sleep(lives.pop(0))
        else:
            done.set()
            await socket.wait_closed()

    began: list[float] = []

    async def greet() -> Hello:
        began.append(asyncio.get_running_loop().time())
        return Hello("one")

    async with serve(gateway, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        dialling = asyncio.create_task(keep_dialled(Dial(f"http://127.0.0.1:{port}", "a-key", app_of([]), greet)))
        async with asyncio.timeout(20):
            await done.wait()
        dialling.cancel()
        await asyncio.wait((dialling,))
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert gaps[0] >= 0.1
    assert gaps[1] >= 0.2
    assert 0.3 + 0.1 <= gaps[2] < 0.3 + 0.4, "it began anew, and did not pause for 0.4 s"
