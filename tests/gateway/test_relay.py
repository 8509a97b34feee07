"""Workers that dial in: who is taken, how calls find them, and what becomes of answers when connections break."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_house import KEY
from relay_house import (
    ASK,
    Cable,
    LetterEngine,
    counted,
    letters,
    received,
    relay_house,
    tokenizer_folder,
    until,
)
from run_house import RUN, registration
from websockets.exceptions import ConnectionClosed, InvalidStatus

from loopwright.core.chains import turns_of
from loopwright.engines.http.connection import Patience
from loopwright.errors import EngineLostError, RefusedError
from loopwright.gateway.registration import registration_to_json
from loopwright.gateway.relay import dialer, endpoint
from loopwright.gateway.relay.frames import (
    MAX_FRAME_BYTES,
    WINDOW_BYTES,
    FrameType,
    RelayFrame,
    frame_of_number,
)
from loopwright.gateway.relay.hello import Hello, WorkerModel
from loopwright.gateway.relay.link import Link
from loopwright.types import Generation


def hello(name: str = "by-hand", **model: Any) -> bytes:
    described = {"source": str(tokenizer_folder()), "max_context": 4096, **model}
    return Hello(name, WorkerModel(**described)).frame().encoded()


async def test_a_call_is_answered_by_a_worker_that_dialled_in(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        worker = await house.worker("one")
        house.session("session-1")
        plain = (await house.chat("session-1", max_tokens=9)).json()
        streamed = await house.chat("session-1", max_tokens=9, stream=True)
        assert plain["usage"]["completion_tokens"] == 9
        assert streamed.text.endswith("data: [DONE]\n\n")
        recorder = house.gateway.sessions.find("session-1").recorder
        asked = [(request.prompt_ids, request.sampling.max_new_tokens) for request in worker.engine.requests]
        turns = [turn for chain in recorder.chains() for turn in turns_of(chain)]
        assert [(turn.prompt_ids, len(turn.ids)) for turn in turns] == asked
        assert house.gateway.exchange.offer.name == "tiny"


async def test_calls_wait_for_a_worker_but_not_for_ever(tmp_path: Path) -> None:
    async with relay_house(tmp_path, wait_seconds=0.3) as house:
        house.session("session-1")
        nobody = await house.chat("session-1", max_tokens=4)
        assert (nobody.status_code, nobody.headers["retry-after"]) == (503, "1")
        waiting = asyncio.create_task(house.chat("session-1", max_tokens=4))
        await asyncio.sleep(0.05)
        worker = await house.worker("one")
        assert (await waiting).status_code == 200
        await worker.end()
        before = time.monotonic()
        assert (await house.chat("session-1", max_tokens=4)).status_code == 503
        assert 0.1 <= time.monotonic() - before < 5
        waiting = asyncio.create_task(house.chat("session-1", max_tokens=4))
        await asyncio.sleep(0.05)
        await house.worker("two")
        assert (await waiting).status_code == 200


async def test_what_no_worker_answers_is_counted_as_held(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        await (await house.worker("one")).end()
        house.session("session-1")
        waiting = asyncio.create_task(house.chat("session-1", max_tokens=4))
        await asyncio.sleep(0.3)
        await house.worker("one")
        assert (await waiting).status_code == 200
        said = (await house.http.get("/sessions/session-1")).json()
        assert said["held_seconds"] - said["held_before_first_call"] > 0.15


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "another-key-of-somebody"}, "401: the key is missing or wrong"),
        ({"source": "models/another"}, "serve tiny with a context of 4096 tokens, and not another"),
        ({"max_context": 2048}, "not tiny with a context of 2048 tokens"),
        ({"name": "no name"}, "no name for a worker"),
    ],
)
async def test_a_worker_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    async with relay_house(tmp_path) as house:
        await house.worker("one")
        with pytest.raises(RefusedError, match=reason):
            await house.worker(change.pop("name", "two"), **change)
        assert counted(await house.generate("a/0", 6), 6), "the first one goes on"


async def test_a_gateway_for_one_model_takes_no_other(tmp_path: Path) -> None:
    async with relay_house(tmp_path, model=str(tokenizer_folder())) as house:
        with pytest.raises(RefusedError, match="for workers that serve tiny, and not another"):
            await house.worker("one", source="models/another")
        await house.worker("two", source="/somewhere/else/tiny")


async def test_a_worker_of_another_protocol_is_told_so(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house, house.socket() as socket:
        await socket.send(b"\x02" + hello()[1:])
        refused = await received(socket)
        assert refused.type is FrameType.REFUSED
        assert "protocol 2 of the relay" in refused.words["message"]
        assert refused.words["status"] == 426
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == endpoint.REFUSED_CODE


async def test_only_the_gateways_key_opens_the_relay_and_only_its_own_path(tmp_path: Path) -> None:
    """S3."""
    async with relay_house(tmp_path) as house:
        made = (await house.http.post("/sessions/session-1", json={})).json()
        for key, path, status in [
            (made["key"], "/relay", 401),
            ("", "/relay", 401),
            (KEY, "/sessions/session-1/v1/responses", 404),
            (KEY, "/", 404),
        ]:
            with pytest.raises(InvalidStatus) as denied:
                async with house.socket(key, path):
                    pass
            assert denied.value.response.status_code == status
        with pytest.raises(InvalidStatus) as denied:
            async with house.socket(origin="http://a.page"):
                pass
        assert denied.value.response.status_code == 403
        assert b"not for web pages" in denied.value.response.body


async def test_who_says_nothing_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "HELLO_SECONDS", 0.05)
    async with relay_house(tmp_path) as house, house.socket() as socket:
        with pytest.raises(ConnectionClosed, match="no HELLO"):
            await socket.recv()


async def test_a_run_and_workers_keep_each_other_away(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        await house.worker("one")
        refused = await house.http.put("/run", json=registration_to_json(registration(), 60.0))
        assert refused.status_code == 409
        assert "workers serve tiny" in refused.json()["error"]["message"]
        headers = {"x-loopwright-run": RUN, "x-loopwright-lineage": "0"}
        assert (await house.http.delete("/run", headers=headers)).status_code == 200
        assert counted(await house.generate("a/0", 6), 6), "nobody has taken the workers' model away"


async def test_a_worker_waits_while_a_run_holds_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "LONGEST_PAUSE_SECONDS", 0.1)
    async with relay_house(tmp_path) as house:
        house_runs = house.gateway.exchange.offer
        held = registration_to_json(registration(), 0.5)
        # Its door cannot be reached, but it has the lease until that is known.
        asking = asyncio.create_task(house.http.put("/run", json=held))
        await asyncio.sleep(0.05)
        worker = await house.worker("one", wait=False)
        assert (await asking).status_code == 400
        await until(lambda: worker.connections)
        assert house_runs.name == "tiny"


async def test_an_answer_of_a_lost_worker_goes_on_at_another_of_the_same_version(tmp_path: Path) -> None:
    slow = 0.005
    async with relay_house(tmp_path) as house:
        first = await house.worker("one", LetterEngine(version=3, pace=slow))
        heard: list[Generation] = []
        going = asyncio.create_task(house.generate("a/0", 60, on_part=heard.append))
        await until(lambda: len(heard) >= 8)
        other = await house.worker("other", LetterEngine(version=4))
        same = await house.worker("same", LetterEngine(version=3))
        await first.end()
        answer = await going
        assert counted(answer, 60)
        assert set(answer.versions) == {3}
        assert [request.sampled_before for request in other.engine.requests] == []
        assert same.engine.requests[0].sampled_before >= 8


async def test_an_answer_waits_for_weights_of_its_version(tmp_path: Path) -> None:
    async with relay_house(tmp_path, wait_seconds=0.5) as house:
        first = await house.worker("one", LetterEngine(version=3, pace=0.005))
        heard: list[Generation] = []
        going = asyncio.create_task(house.generate("a/0", 60, on_part=heard.append))
        await until(lambda: len(heard) >= 8)
        await house.worker("other", LetterEngine(version=4))
        await first.end()
        with pytest.raises(EngineLostError, match="no worker that can answer"):
            await going


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_nobody_hears_goes_on_from_its_tokens_too(tmp_path: Path, stream: bool) -> None:
    async with relay_house(tmp_path) as house:
        house.session("session-1")
        first = await house.worker("one", LetterEngine(pace=0.005))
        asked = asyncio.create_task(house.chat("session-1", max_tokens=200, stream=stream))
        await until(lambda: first.engine.counted >= 150)
        await first.end()
        second = await house.worker("two")
        assert (await asked).status_code == 200
        assert second.engine.requests[0].sampled_before >= 64
        (chain,) = house.gateway.sessions.find("session-1").recorder.chains()
        turn = turns_of(chain)[-1]
        start = len(turn.prompt_ids)
        assert turn.ids == letters(start, 200)


async def test_a_second_connection_replaces_the_first_and_the_first_takes_nothing_with_it(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        old = await house.worker("one", LetterEngine(pace=0.005))
        going = asyncio.create_task(house.generate("a/0", 60))
        await until(lambda: old.engine.counted >= 8)
        old_connection = old.connections
        new = await house.worker("one", LetterEngine())
        # The older process is cut off, and must not come back.
        await old.end()
        assert counted(await going, 60)
        assert new.engine.requests[0].sampled_before >= 4
        assert old.connections == old_connection
        await asyncio.sleep(0.05)
        assert counted(await house.generate("b/0", 6), 6), "the end of the old connection has unregistered nobody"


async def test_a_connection_that_is_cut_is_dialled_again(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house, Cable(house.gateway.port).laid() as cable:
        worker = await house.worker("one", LetterEngine(pace=0.005), url=cable.url)
        going = asyncio.create_task(house.generate("a/0", 60))
        await until(lambda: worker.engine.counted >= 8)
        cable.cut()
        assert counted(await going, 60)
        assert worker.connections == 2
        first, again = worker.engine.requests
        assert (first.sampled_before, again.sampled_before > 0) == (0, True)


async def test_a_cancelled_call_ends_at_the_worker(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        worker = await house.worker("one", LetterEngine(pace=0.005))
        house.session("session-1")
        with pytest.raises(httpx.ReadTimeout):
            await house.http.post("/session-1/v1/chat/completions", json={**ASK, "max_tokens": 256}, timeout=0.2)
        await until(lambda: worker.engine.is_idle)
        assert worker.engine.counted < 256
        assert counted(await house.generate("b/0", 6), 6)


async def test_sessions_stay_with_their_worker_and_new_ones_go_to_the_least_busy(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house:
        one = await house.worker("one", LetterEngine(pace=0.002))
        two = await house.worker("two", LetterEngine(pace=0.002))
        await asyncio.gather(*(house.generate(f"s{number}/0", 20) for number in range(8)))
        homes = {
            request.id.split("/")[0]: name
            for name, worker in (("one", one), ("two", two))
            for request in worker.engine.requests
        }
        assert sorted(homes.values()).count("one") == 4
        for turn in (1, 2):
            await asyncio.gather(*(house.generate(f"s{number}/{turn}", 4) for number in range(8)))
        for name, worker in (("one", one), ("two", two)):
            assert {homes[request.id.split("/")[0]] for request in worker.engine.requests} == {name}


async def test_a_worker_whose_engine_is_lost_leaves_its_calls_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay_house(tmp_path) as house:
        sick = await house.worker("one", LetterEngine(pace=0.005))
        going = asyncio.create_task(house.generate("a/0", 60))
        await until(lambda: sick.engine.counted >= 8)
        well = await house.worker("two")
        sick.engine.dead = True
        assert counted(await going, 60)
        assert well.engine.requests[0].sampled_before >= 4


async def test_a_silent_connection_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall may forget a connection without a word."""
    from loopwright.gateway import server
    from loopwright.serve.listen import WebSockets

    monkeypatch.setattr(server, "RELAY_SOCKETS", WebSockets(MAX_FRAME_BYTES, 0.1, 0.1))
    async with relay_house(tmp_path) as house, house.socket(ping_interval=None) as socket:
        await socket.send(hello())
        assert (await received(socket)).type is FrameType.WELCOME
        socket.transport.pause_reading()
        going = asyncio.create_task(house.generate("a/0", 6))
        await asyncio.sleep(0.4)
        await house.worker("two")
        assert counted(await going, 6)


async def test_an_answer_is_held_back_until_it_is_read(tmp_path: Path) -> None:
    """Backpressure: a worker may send a window, and more only when the gateway has read it."""
    async with relay_house(tmp_path) as house, house.socket() as socket:
        await socket.send(hello())
        assert (await received(socket)).type is FrameType.WELCOME
        going = asyncio.create_task(house.generate("a/0", 6))
        asked = await received(socket)
        assert asked.type is FrameType.ASK
        while (await received(socket)).type is not FrameType.END:
            pass
        await socket.send(frame_of_number(FrameType.STATUS, 200, asked.request).encoded())
        sent = 0
        while sent < 3 * WINDOW_BYTES:
            comment = b":" + b" " * 60_000 + b"\n\n"
            await socket.send(RelayFrame(FrameType.PART, asked.request, comment).encoded())
            sent += len(comment)
            credit = await received(socket)
            assert (credit.type, credit.number) == (FrameType.CREDIT, len(comment))
        going.cancel()
        assert (await received(socket)).type is FrameType.CANCEL


async def test_a_worker_that_sends_more_than_its_credit_breaks_the_protocol() -> None:
    link = Link("one")

    async def ask() -> None:
        async with link.ask("GET", "/", {}, b"", Patience(10.0)) as answer:
            await asyncio.Event().wait()
            await answer.more()

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    link.hear(frame_of_number(FrameType.STATUS, 200, 1))
    for _ in range(WINDOW_BYTES // 60_000):
        link.hear(RelayFrame(FrameType.PART, 1, bytes(60_000)))
    with pytest.raises(RefusedError, match="PART does not fit"):
        link.hear(RelayFrame(FrameType.PART, 1, bytes(60_000)))
    asking.cancel()
    await asyncio.wait((asking,))


async def test_a_frame_that_is_too_large_ends_its_connection(tmp_path: Path) -> None:
    async with relay_house(tmp_path) as house, house.socket() as socket:
        await socket.send(hello())
        await received(socket)
        await socket.send(RelayFrame(FrameType.PART, 1, bytes(MAX_FRAME_BYTES)).encoded())
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1009
