"""What is asked is kept before the engine is called, and what was answered before the reply: a gateway that dies loses
no answer, and knows which calls it has cut off."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_house import House, RecordingEngine, house, odd_ids

from loopwright.errors import EngineLostError, RunError
from loopwright.gateway import call_log
from loopwright.gateway.call_log import CallLog, calls_without_end
from loopwright.gateway.session import SessionState
from loopwright.gateway.store import SqliteStore
from loopwright.ports import OnPart
from loopwright.types import FinishReason, GenerateRequest, Generation

HI = [{"role": "user", "content": "Hi"}]
PATH = "/session-1/v1/chat/completions"
FILES = ("sessions.sqlite", "sessions.sqlite-wal", "sessions.sqlite.calls")


def numbered(request: GenerateRequest) -> str:
    return f"Answer {len(request.prompt_ids)} of {request.sampling.seed % 997}."


class DyingEngine(RecordingEngine):
    """Copies the gateway's files when it is asked the `at`-th time: what a gateway that dies now leaves behind."""

    def __init__(self, folder: Path, copy: Path, at: int) -> None:
        super().__init__(numbered, encode=odd_ids)
        self._folder, self._copy, self._at = folder, copy, at

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        self._at -= 1
        if self._at == 0:
            self._copy.mkdir()
            for name in FILES:
                shutil.copy(self._folder / name, self._copy / name)
        return await super().generate(request, on_part)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0.005)


async def status(h: House) -> dict[str, Any]:
    return dict((await h.http.get("/sessions/session-1")).json())


def out(store: SqliteStore) -> int:
    """How many calls are logged and have no end, by the file."""
    return len(calls_without_end(store._path.with_name(f"{store._path.name}.calls")))


async def test_calls_that_a_crash_cut_off_are_told_and_their_seeds_are_not_used_again(tmp_path: Path) -> None:
    folder, copy = tmp_path / "alive", tmp_path / "dead"
    engine = DyingEngine(folder, copy, at=4)
    async with SqliteStore(folder / FILES[0]) as store, house([], engine=engine, store=store) as h:
        await h.session()
        said = await h.chat("session-1", HI)
        asked = [*HI, said, {"role": "user", "content": "Go on."}]
        # The first call is answered. The gateway dies during the second, when the engine is asked for its last sample.
        await h.post(PATH, {"messages": asked, "n": 3})
        first = (await status(h))["first_call"]
        used = {request.sampling.seed for request in h.engine.requests}
    async with SqliteStore(copy / FILES[0]) as store, house(numbered, store=store) as h:
        told = await status(h)
        assert (told["turns"], told["cut_off_calls"], told["first_call"]) == (1, 1, first)
        (call,) = store.cut_off("session-1")
        assert (call.samples, call.draws) == (3, 4)
        assert call.prompt_tokens == len(engine.requests[-1].prompt_ids)
        assert isinstance(h.gateway.sessions.find("session-1").fault, EngineLostError)
        await h.chat("session-1", asked)
        assert h.engine.requests[0].sampling.seed not in used
        assert h.gateway.sessions.find("session-1").fault is None
        assert len(h.recorder()) == 2
        await h.http.post("/sessions/session-1/complete")
        assert (await status(h))["cut_off_calls"] == 1
    async with SqliteStore(copy / FILES[0]) as store, house(numbered, store=store) as h:
        assert (await status(h))["cut_off_calls"] == 1, "also after the next restart"
        await h.http.delete("/sessions/session-1")
        assert not store.cut_off("session-1")


async def test_a_call_is_out_until_it_ends_in_whatever_way(tmp_path: Path) -> None:
    file = tmp_path / FILES[0]
    seconds = [0.0]
    engine = RecordingEngine(numbered, encode=odd_ids, faults={0}, seconds=lambda request: seconds[0])
    async with SqliteStore(file) as store, house([], store=store, engine=engine) as h:
        await h.session()
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        assert out(store) == 0
        await h.chat("session-1", HI)
        seconds[0] = 30.0
        leaving = asyncio.create_task(h.post(PATH, {"messages": HI}))
        await until(lambda: len(h.engine.requests) == 3)
        # The answered call is in the log too: its turn tells that it was answered.
        assert out(store) == 2
        leaving.cancel()
        await until(lambda: out(store) == 1)
        ended = asyncio.create_task(h.post(PATH, {"messages": HI}))
        await until(lambda: len(h.engine.requests) == 4)
        await h.http.post("/sessions/session-1/complete")
        assert (await ended).status_code == 410
        assert out(store) == 1
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert (await status(h))["cut_off_calls"] == 0


async def test_the_seeds_of_failed_calls_are_not_used_again(tmp_path: Path) -> None:
    file = tmp_path / FILES[0]
    async with SqliteStore(file) as store, house(numbered, store=store, faults={0, 1}) as h:
        await h.session()
        for _ in range(2):
            assert (await h.post(PATH, {"messages": HI})).status_code == 503
        used = {request.sampling.seed for request in h.engine.requests}
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert h.gateway.sessions.find("session-1").fault is not None, "the engine failed the last call"
        await h.chat("session-1", HI)
        assert h.engine.requests[0].sampling.seed not in used
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        session = h.gateway.sessions.find("session-1")
        assert (session.fault, session.last_finish) == (None, FinishReason.STOP)


async def test_a_gateway_that_is_stopped_during_a_call_has_cut_it_off(tmp_path: Path) -> None:
    file = tmp_path / FILES[0]
    async with SqliteStore(file) as store:
        async with house(numbered, store=store, seconds=lambda request: 30.0) as h:
            await h.session()
            asking = asyncio.create_task(h.post(PATH, {"messages": HI}))
            await until(lambda: bool(h.engine.requests))
        assert isinstance(*await asyncio.gather(asking, return_exceptions=True), httpx.HTTPError)
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert (await status(h))["cut_off_calls"] == 1


async def test_without_room_on_the_disk_the_engine_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore(tmp_path / FILES[0]) as store, house(numbered, store=store) as h:
        await h.session()
        await h.chat("session-1", HI)

        def full(file: int, line: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            answer = await h.post(PATH, {"messages": HI})
        assert answer.status_code == 500
        assert "No space left" in answer.json()["error"]["message"]
        assert len(h.engine.requests) == 1
        await h.chat("session-1", HI)


def test_a_long_log_forgets_calls_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_log, "LONGEST_BYTES", 2000)
    path = tmp_path / "calls"
    log = CallLog(path)
    log.ask("session-1", "stays-out", 10, 1, 1)
    for number in range(200):
        log.ask("session-1", f"answer-{number}", 10, 1, number + 2)
        log.answered(f"answer-{number}")
        assert path.stat().st_size < 2300
    log.ask("session-1", "fails", 10, 1, 300)
    log.ended("fails")
    log.close()
    left = {call.id for call in calls_without_end(path)}
    assert "stays-out" in left
    assert "fails" not in left
    assert path.stat().st_mode & 0o077 == 0


def test_a_line_that_is_not_whole_belongs_to_no_call(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    log = CallLog(path)
    log.ask("session-1", "whole", 10, 1, 1)
    log.ask("session-1", "torn", 10, 1, 2)
    log.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert [call.id for call in calls_without_end(path)] == ["whole"]


async def test_held_seconds_survive_a_restart(tmp_path: Path) -> None:
    file, clock = tmp_path / FILES[0], [50.0]
    async with SqliteStore(file) as store, house(numbered, store=store, held=lambda: clock[0]) as h:
        await h.session()
        await h.chat("session-1", HI)
        clock[0] += 7
        await h.chat("session-1", HI)
    clock[0] = 3.0
    async with SqliteStore(file) as store, house(numbered, store=store, held=lambda: clock[0]) as h:
        clock[0] += 2
        assert (await status(h))["held_seconds"] == 9.0
        assert h.gateway.sessions.find("session-1").last_finish is FinishReason.STOP


async def test_a_store_of_the_release_before_goes_on(tmp_path: Path) -> None:
    """It has neither facts of sessions nor a log of calls."""
    file = tmp_path / FILES[0]
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        for id in ("session-1", "session-2"):
            await h.session(id)
            await h.chat(id, HI)
        await h.http.post("/sessions/session-2/complete")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("ALTER TABLE sessions DROP COLUMN facts")
        db.execute("DROP TABLE cut_off")
        db.execute("PRAGMA user_version = 1")
    (tmp_path / FILES[2]).unlink()
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        told = await status(h)
        assert (told["turns"], told["first_call"], told["cut_off_calls"]) == (1, None, 0)
        await h.chat("session-1", HI)
        version = (await h.http.get("/sessions/session-2")).json()["version"]
        assert version
        assert (await h.http.get(f"/sessions/session-2/chains?version={version}")).status_code == 200


class FullAtTheEnd(SqliteStore):
    """Its disk is full when a session ends."""

    is_full = True

    def end(self, session: Any) -> None:
        if self.is_full:
            raise RunError("the disk is full", remedy="make room")
        super().end(session)


async def test_a_session_whose_end_cannot_be_stored_is_still_open(tmp_path: Path) -> None:
    async with FullAtTheEnd(tmp_path / FILES[0]) as store, house(numbered, store=store) as h:
        await h.session(ttl_seconds=0.01)
        assert (await h.http.post("/sessions/session-1/complete")).status_code == 500
        session = h.gateway.sessions.find("session-1")
        assert (session.state, session.version) == (SessionState.OPEN, None)
        await asyncio.sleep(0.02)
        h.gateway.sessions.end_idle()
        store.is_full = False
        assert (await h.http.post("/sessions/session-1/complete")).status_code == 200


async def test_a_log_that_cannot_be_shortened_fails_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn of the call is stored by then: a failure would leave a turn that memory does not know."""
    monkeypatch.setattr(call_log, "LONGEST_BYTES", 10)
    real = os.open

    def without_files(path: Any, *more: Any) -> int:
        if str(path).endswith(".calls.new"):
            raise OSError(24, "Too many open files")
        return real(path, *more)

    async with SqliteStore(tmp_path / FILES[0]) as store, house(numbered, store=store) as h:
        await h.session()
        monkeypatch.setattr(os, "open", without_files)
        for number in range(3):
            await h.chat("session-1", [{"role": "user", "content": f"Hi {number}"}])
        assert len(h.recorder()) == len(store.turns("session-1")) == 3
        assert out(store) == 3
        monkeypatch.setattr(os, "open", real)
        await h.chat("session-1", [{"role": "user", "content": "Hi again"}])
        assert out(store) < 4, "it is shortened as soon as that is possible"


def test_a_line_that_was_not_written_whole_hides_no_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, real = CallLog(tmp_path / "calls"), os.write
    monkeypatch.setattr(os, "write", lambda file, text: real(file, text[:10]))
    with pytest.raises(RunError, match="not written whole"):
        log.ask("session-1", "first", 1, 1, 1)
    monkeypatch.setattr(os, "write", real)
    log.ask("session-1", "second", 1, 1, 2)
    log.ask("session-1", "third", 1, 1, 3)
    log.close()
    assert [call.id for call in calls_without_end(tmp_path / "calls")] == ["second", "third"]


async def test_a_deleted_session_leaves_no_deliveries(tmp_path: Path) -> None:
    """They are written a moment after the delivery, and would count for a later session with the same id."""
    async with SqliteStore(tmp_path / FILES[0]) as store, house(numbered, store=store) as h:
        await h.session()
        store.delivered("session-1", [0])
        store.delivered("session-2", [0])
        await h.http.delete("/sessions/session-1")
        store._write_delivered()
        assert store._connection is not None
        assert store._connection.execute("SELECT * FROM delivered").fetchall() == [("session-2", 0)]
