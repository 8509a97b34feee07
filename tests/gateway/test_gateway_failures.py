"""What fails leaves nothing behind (S2), and is told so that clients try again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from gateway_house import KEY, House, RecordingEngine, house, odd_ids

from loopwright.core.redaction import MARK, Redactor
from loopwright.errors import EngineError, EngineLostError, RunError
from loopwright.gateway.session import SessionState
from loopwright.gateway.store import SqliteStore
from loopwright.ports import OnPart
from loopwright.types import ChainStart, FinishReason, GenerateRequest, Generation

HI = [{"role": "user", "content": "Hi"}]


class DyingEngine(RecordingEngine):
    """Its first answer breaks off after three tokens."""

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if not self.requests:
            self.requests.append(request)
            for token in odd_ids("Bro")[:3]:
                if on_part is not None:
                    on_part(Generation((token,), (-0.5,), (0,), FinishReason.ABORT))
                await asyncio.sleep(0.02)
            raise EngineError("the engine died", remedy="start it again")
        return await super().generate(request, on_part)


async def test_an_engine_that_is_down_is_a_retryable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with house(["Hello.", "Hello."], faults={0, 1, 2}) as h:
        session = await h.session()
        path = f"/{session}/v1/chat/completions"
        failed = await h.post(path, {"messages": HI})
        assert failed.status_code == 503
        assert failed.headers["retry-after"] == "1"
        assert failed.json()["error"]["type"] == "server_error"
        streamed = await h.post(f"/{session}/v1/messages", {"messages": HI, "max_tokens": 9, "stream": True})
        assert streamed.status_code == 503
        assert streamed.json()["error"]["type"] == "overloaded_error"
        assert len(h.recorder()) == 0
        monkeypatch.setattr("anyio.sleep", pause)
        async with h.openai(session, max_retries=1) as client:
            reply = await client.chat.completions.create(model="m", messages=HI)
        assert pauses == [1.0], "the client waits as long as it is told"
        assert reply.choices[0].message.content == "Hello."
        assert [chain.start for chain in h.chains()] == [ChainStart.FIRST]


async def test_agents_are_not_told_where_the_engine_is(caplog: pytest.LogCaptureFixture) -> None:
    class LostEngine(RecordingEngine):
        async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
            raise EngineLostError("the engine at http://10.0.0.7:8000 cannot be reached", remedy="start it again")

    async with house([], engine=LostEngine([], encode=odd_ids)) as h:
        failed = await h.post(f"/{await h.session()}/v1/chat/completions", {"messages": HI})
        assert failed.status_code == 503
        assert failed.json()["error"]["message"].startswith("the engine gave no answer")
        assert "10.0.0.7" not in failed.text
        assert "10.0.0.7" in str(h.gateway.sessions.find("session-1").fault)
    assert "http://10.0.0.7:8000" in caplog.text


async def test_an_answer_that_breaks_off_is_an_error_in_the_stream() -> None:
    engines = (DyingEngine(["Hello."] * 9, encode=odd_ids) for _ in range(3))
    asked: dict[str, Any] = {"model": "m", "messages": HI}
    async with house([], engine=next(engines)) as h, h.openai(await h.session(), max_retries=0) as client:
        with pytest.raises(openai.APIError, match="the engine gave no answer"):
            [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
        assert len(h.recorder()) == 0
        assert (await client.chat.completions.create(**asked)).choices[0].message.content == "Hello."
        assert len(h.chains()) == 1
    async with house([], engine=next(engines)) as h, h.openai(await h.session(), max_retries=0) as client:
        events = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
        assert events[-1].type == "response.failed"
        assert len(h.recorder()) == 0
    async with house([], engine=next(engines)) as h, h.anthropic(await h.session(), max_retries=0) as other:
        with pytest.raises(anthropic.APIStatusError, match="the engine gave no answer"):
            [event async for event in await other.messages.create(**asked, max_tokens=9, stream=True)]
        assert len(h.recorder()) == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_cancels_its_generation(streamed: bool) -> None:
    async with house(["A slow answer."] * 3, seconds=lambda request: 30.0) as h:
        await h.session()
        body = {"messages": HI, "stream": streamed}
        with pytest.raises(httpx.ReadTimeout):
            await h.http.post("/session-1/v1/chat/completions", json=body, timeout=httpx.Timeout(5, read=0.2))
        async with asyncio.timeout(5):
            while h.gateway.sessions.find("session-1").running:
                await asyncio.sleep(0.01)
            await h.engine.pause()  # returns when nothing is being sampled
        assert h.engine.log == []
        assert len(h.recorder()) == 0


async def test_a_slow_engine_does_not_leave_a_stream_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_BEAT_SECONDS", "BEAT_SECONDS"):
        monkeypatch.setattr(f"loopwright.gateway.events.{name}", 0.05)
    async with house(["Hello."], seconds=lambda request: 0.4) as h:
        await h.session()
        body = {"messages": HI, "stream": True, "max_tokens": 50}
        async with h.http.stream("POST", "/session-1/v1/messages", json=body) as response:
            pieces = [piece async for piece in response.aiter_raw()]
        assert b"message_start" in pieces[0]
        assert any(piece.startswith(b": ") for piece in pieces)
        assert b"message_stop" in pieces[-1]


def numbered(request: GenerateRequest) -> str:
    return f"Answer {len(request.prompt_ids)} of {request.sampling.seed % 997}."


async def test_a_restarted_gateway_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "gateway" / "sessions.sqlite"
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        key = (await h.post("/sessions/session-1", {"sampling": {"temperature": 0.5}})).json()["key"]
        first = await h.chat("session-1", HI)
        other = await h.chat("session-1", [{"role": "user", "content": "Ho"}])
        before, log = h.chains(), list(h.engine.log)
    assert file.stat().st_mode & 0o077 == 0
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        h.engine.log.extend(log)
        for was, now in zip(before, h.chains(), strict=True):
            assert was.ids.tolist() == now.ids.tolist()
            assert was.logprobs.tolist() == now.logprobs.tolist()
            assert was.start == now.start
        h.http.headers["authorization"] = f"Bearer {key}"
        await h.chat("session-1", [*HI, first, {"role": "user", "content": "Go on."}])
        assert other
        assert [chain.start for chain in h.chains()] == [ChainStart.FIRST, ChainStart.SEPARATE]
        assert h.engine.log[-1][0].sampling.temperature == 0.5
        assert h.engine.log[-1][0].prompt_ids[: len(before[0].ids)] == tuple(before[0].ids.tolist())


class Dying(SqliteStore):
    """Its process dies before it hears of a delivery."""

    def delivered(self, session_id: str, numbers: Sequence[int]) -> None:
        """Nobody is left to write it."""


async def test_an_answer_that_was_lost_with_the_gateway_is_given_again(tmp_path: Path) -> None:
    file = tmp_path / "sessions.sqlite"
    async with Dying(file) as dying, house(numbered, store=dying) as h:
        await h.session()
        lost = await h.chat("session-1", HI)
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert (await h.chat("session-1", HI))["content"] == lost["content"]
        assert (await h.chat("session-1", HI))["content"] != lost["content"]
        assert len(h.engine.requests) == 1


async def test_completed_sessions_leave_memory_and_stay_readable(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(numbered, store=store) as h:
        await h.session()
        await h.chat("session-1", HI)
        chains = h.chains()
        await h.http.post("/sessions/session-1/complete")
        assert len(h.recorder()) == 0
        (shown,) = (await h.http.get("/sessions/session-1/chains")).json()["chains"]
        assert shown["ids"] == chains[0].ids.tolist()
        assert h.gateway.sessions.find("session-1").state is SessionState.COMPLETED
        await h.http.delete("/sessions/session-1")
        assert store.sessions() == []
        assert store.turns("session-1") == []


async def test_a_store_keeps_no_key_of_a_session_that_is_over(tmp_path: Path) -> None:
    """While it is open, a session goes on from what was said, word for word; afterwards nobody needs its secrets."""
    file = tmp_path / "sessions.sqlite"
    said: list[dict[str, Any]] = []
    async with SqliteStore(file, Redactor([KEY])) as store, house(numbered, store=store) as h:
        key = (await h.post("/sessions/session-1", {})).json()["key"]
        said += [{"role": "user", "content": f'OPENAI_API_KEY="{key}"\nGATEWAY={KEY}'}]
        said += [await h.chat("session-1", said), {"role": "user", "content": "Go on."}]
    async with SqliteStore(file, Redactor([KEY])) as store, house(numbered, store=store) as h:
        await h.chat("session-1", said)
        assert [turn.start for turn in h.recorder().turns] == [ChainStart.FIRST, None]
        ids = [turn.ids.tolist() for turn in h.recorder().turns]
        await h.http.post("/sessions/session-1/complete")
        assert [turn.ids.tolist() for turn in store.turns("session-1")] == ids
        assert store.turns("session-1")[0].added[0]["content"] == f'OPENAI_API_KEY="{MARK}"\nGATEWAY={MARK}'
    stored = file.read_bytes()
    assert key.encode() not in stored
    assert KEY.encode() not in stored


def is_in_a_file(words: str, folder: Path) -> bool:
    return any(words.encode() in file.read_bytes() for file in folder.iterdir())


@pytest.mark.parametrize("deleted", [True, False])
async def test_what_is_redacted_is_soon_in_no_file(
    deleted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed in SQLite's log for as long as the gateway ran, and for good if that was killed."""
    monkeypatch.setattr("loopwright.gateway.store.TIDY_SECONDS", 0.02)
    # What is deleted need not be a secret. A long text has pages of its own, which are not written to again.
    redact, words = Redactor([] if deleted else [KEY]), f"It is {KEY}" + 20_000 * "."
    async with (
        SqliteStore(tmp_path / "sessions.sqlite", redact) as store,
        house(["Hi."], store=store, max_context=30_000) as h,
    ):
        await h.session()
        await h.chat("session-1", [{"role": "user", "content": words}])
        assert is_in_a_file(KEY, tmp_path)
        session = h.gateway.sessions.find("session-1")
        if deleted:
            h.gateway.sessions.delete(session)
        else:
            h.gateway.sessions.end(session)
        async with asyncio.timeout(5):
            while is_in_a_file(KEY, tmp_path):
                await asyncio.sleep(0.02)


class FullDisk(SqliteStore):
    """Takes sessions, and no turns."""

    def add(self, session: Any, call_id: str, turns: Any) -> None:
        raise RunError("the disk is full", remedy="make room")


async def test_a_turn_that_cannot_be_stored_is_not_recorded(tmp_path: Path) -> None:
    async with FullDisk(tmp_path / "sessions.sqlite") as store, house(["Hello."] * 9, store=store) as h:
        await h.session()
        response = await h.post("/session-1/v1/chat/completions", {"messages": HI})
        assert response.status_code == 500
        assert "the disk is full" in response.json()["error"]["message"]
        assert len(h.recorder()) == 0


async def test_agents_are_not_told_where_the_store_lies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(["Hello."] * 9, store=store) as h:
        await h.session()
        assert store._connection is not None
        store._connection.execute("PRAGMA query_only = ON")
        for stream in (False, True):
            response = await h.post("/session-1/v1/chat/completions", {"messages": HI, "stream": stream})
            assert "cannot be used" in response.text
            assert str(tmp_path) not in response.text
    assert str(tmp_path) in caplog.text


async def test_many_sessions_at_once_are_all_kept(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(numbered, store=store) as h:

        async def agent(number: int, h: House) -> None:
            session = await h.session(f"session-{number}")
            messages: list[dict[str, Any]] = [{"role": "user", "content": f"I am {number}."}]
            for _ in range(3):
                messages += [await h.chat(session, messages), {"role": "user", "content": "Go on."}]

        await asyncio.gather(*(agent(number, h) for number in range(40)))
        for number in range(40):
            assert len(h.chains(f"session-{number}")) == 1


async def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "sessions.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(RunError, match="format 99"):
        async with SqliteStore(file):
            pass
