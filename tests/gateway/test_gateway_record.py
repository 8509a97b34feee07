"""A session that has ended is frozen: it is read at a version, is read whole, and is deleted at that version only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_house import ADD, House, RecordingEngine, call_text, house, odd_ids

from loopwright.errors import ContextError, EngineError, EngineLostError, RefusedError, RunError
from loopwright.gateway.call import Call
from loopwright.gateway.record import SessionRecord, chain_from_json, record_from_json, record_of, record_to_json
from loopwright.gateway.session import SessionState
from loopwright.gateway.store import SqliteStore
from loopwright.gateway.tries import Ask
from loopwright.gateway.wire import version_of
from loopwright.ports import OnPart
from loopwright.types import ChainStart, FinishReason, GenerateRequest, Generation, StopReason, TokenChain

SYSTEM = {"role": "system", "content": "You work."}
TASK = {"role": "user", "content": "Begin."}
HI = [{"role": "user", "content": "Hi"}]
SUMMARY = "So far: the tests were read, and two of them fail."
PATH = "/session-1/v1/chat/completions"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


class OddLogprobs(RecordingEngine):
    """Its logprobs are every kind of float32: short and long, very small, and minus zero."""

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        made = await super().generate(request, None)
        bits = np.random.default_rng(request.sampling.seed).integers(0x80000000, 0xFF7FFFFF, len(made.ids), np.uint32)
        odds = bits.view(np.float32)
        odds[:3] = (-0.0, np.float32(-0.1), -np.finfo(np.float32).smallest_subnormal)[: len(odds)]
        made = replace(made, logprobs=tuple(odds.tolist()))
        if on_part is not None:
            on_part(made)
        return made


def answers(request: GenerateRequest) -> str:
    number = request.sampling.seed % 997
    return "Well. " + call_text("add", f'{{"a": {number}, "b": 0.1}}')


async def work(h: House, engine: Scripted) -> None:
    """Turns with tools, thoughts and an omitted picture; several samples, a sub-agent, a branch and a compaction."""
    await h.session()
    first = await h.chat("session-1", [SYSTEM, TASK], tools=[ADD])
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": [PICTURE]}
    second = await h.chat("session-1", [SYSTEM, TASK, first, result], tools=[ADD])
    await h.post(PATH, {"messages": [SYSTEM, TASK, first, result, second, TASK], "tools": [ADD], "n": 2})
    thought = {"role": "assistant", "content": "A title.", "reasoning_content": "Hm."}
    await h.chat("session-1", [{"role": "user", "content": "Give it a title."}, thought, TASK])
    engine.script(SUMMARY)
    await h.chat("session-1", [SYSTEM, TASK, first, result, {"role": "user", "content": "Sum up."}])
    summary = {"role": "user", "content": f"This goes on from a summary:\n{SUMMARY}\nGo on."}
    await h.chat("session-1", [SYSTEM, TASK, summary], tools=[ADD])


class Scripted(OddLogprobs):
    """Answers as `answers` says, and once what it is told."""

    def __init__(self) -> None:
        self._next: list[str] = []
        super().__init__(self._said, encode=odd_ids)

    def script(self, text: str) -> None:
        self._next.append(text)

    def _said(self, request: GenerateRequest) -> str:
        return self._next.pop() if self._next else answers(request)


def same_bits(one: TokenChain, other: TokenChain) -> bool:
    arrays = ("ids", "mask", "logprobs", "versions")
    return one.start is other.start and all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in arrays
    )


async def test_a_record_is_read_over_http_bit_for_bit(tmp_path: Path) -> None:
    engine = Scripted()
    async with SqliteStore(tmp_path / "s.sqlite") as store, house([], engine=engine, store=store) as h:
        await work(h, engine)
        session = h.gateway.sessions.find("session-1")
        kept = record_of(session, session.recorder)
        version = (await h.http.post("/sessions/session-1/complete")).json()["version"]
        body = (await h.http.get(f"/sessions/session-1/record?version={version}")).json()
        chains = (await h.http.get(f"/sessions/session-1/chains?version={version}")).json()["chains"]
    assert body["version"] == version
    read = record_from_json(body)
    assert {chain.start for chain in kept.chains} >= {
        ChainStart.FIRST,
        ChainStart.BRANCH,
        ChainStart.SEPARATE,
        ChainStart.COMPACTED,
    }
    assert len(kept.chains) == len(read.chains) == len(chains) >= 5
    for one, over_http, of_chains in zip(kept.chains, read.chains, map(chain_from_json, chains), strict=True):
        assert same_bits(one, over_http)
        assert same_bits(one, of_chains)
    # Also what has no chains in it: conversations with thoughts and calls of tools, tools, and how it ended.
    assert read == kept
    said = [message for one in read.described for message in one.messages]
    assert any(message.get("reasoning") for message in said)
    assert any(message.get("omitted") for message in said)
    assert sum(one.is_main for one in read.described) < len(read.described)
    assert read.tools == (ADD["function"],)
    assert read.transcript[-1]["role"] == "assistant"
    assert read.fault is None
    assert read.episode(read.transcript).stop is StopReason.DONE


@pytest.mark.parametrize(
    "fault",
    [
        EngineError("it is broken", remedy="mend it"),
        EngineLostError("it is away", remedy="start it", engine=3),
        ContextError("too long", remedy="be brief", tokens=99, max_context=9),
        None,
    ],
)
def test_a_fault_is_read_as_what_it_was(fault: Any) -> None:
    record = SessionRecord((), (), (), (), FinishReason.LENGTH, fault)
    read = record_from_json(json.loads(json.dumps(record_to_json(record))))
    assert type(read.fault) is type(fault)
    assert fault is None or (read.fault is not None and str(read.fault) == str(fault))
    assert fault is None or (read.fault is not None and read.fault.facts == fault.facts)
    assert read.episode(()).stop is StopReason.BUDGET
    assert read.episode((), StopReason.ABORTED).stop is StopReason.ABORTED


@pytest.mark.parametrize("broken", [{}, {"chains": 3}, {"last_finish": "odd"}, {"chains": [{"ids": [1], "mask": []}]}])
def test_what_is_no_record_says_so(broken: dict[str, Any]) -> None:
    body = record_to_json(SessionRecord((), (), (), (), None, None)) | broken if broken else {}
    with pytest.raises(RunError, match="record cannot be read"):
        record_from_json(body)


async def test_the_record_tells_that_the_engine_failed_the_last_call(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    async with SqliteStore(file) as store, house(["Hello."] * 3, store=store, faults={1}) as h:
        await h.session()
        await h.chat("session-1", HI)
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        await h.http.post("/sessions/session-1/complete")
    async with SqliteStore(file) as store, house([], store=store) as h:
        read = record_from_json((await h.http.get("/sessions/session-1/record")).json())
        assert type(read.fault) is EngineError
        assert read.last_finish is FinishReason.STOP


async def test_a_record_is_read_and_deleted_at_its_version_only(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    async with SqliteStore(file) as store, house(["Hello."] * 3, store=store) as h:
        await h.session()
        await h.chat("session-1", HI)
        opened = (await h.http.get("/sessions/session-1")).json()
        assert opened["version"] is None
        for method, path in (("GET", "/chains"), ("GET", "/record"), ("DELETE", "")):
            answer = await h.http.request(method, f"/sessions/session-1{path}?version=1")
            assert answer.status_code == 409
            assert "is open" in answer.json()["error"]["message"]
        assert (await h.http.get("/sessions/session-1/record")).json()["version"] is None
        done = (await h.http.post("/sessions/session-1/complete")).json()
        assert (await h.http.post("/sessions/session-1/complete")).json()["version"] == done["version"]
        assert (await h.http.get("/sessions/session-1")).json()["version"] == done["version"]
    async with SqliteStore(file) as store, house([], store=store) as h:
        version = (await h.http.get("/sessions/session-1")).json()["version"]
        assert version == done["version"], "also after a restart"
        for method, path in (("GET", "/chains"), ("GET", "/record"), ("DELETE", "")):
            for other in ("", "x" * 500, version[:-1]):
                answer = await h.http.request(method, f"/sessions/session-1{path}?version={other}")
                assert answer.status_code == 409
        for path in ("/chains", "/record"):
            answer = await h.http.get(f"/sessions/session-1{path}?version={version}")
            assert answer.json()["version"] == version
        assert (await h.http.delete(f"/sessions/session-1?version={version}")).json()["deleted"]
        assert store.sessions() == []


async def test_the_version_tells_records_apart() -> None:
    async with house(answers) as h:
        await h.session()
        for word in ("Hi", "Ho"):
            await h.chat("session-1", [{"role": "user", "content": word}])
        session = h.gateway.sessions.find("session-1")
        first, second = session.recorder.turns
        other_token = replace(second, ids=second.ids + 1)
        other_odds = replace(second, logprobs=np.nextafter(second.logprobs, np.float32(1)))
        other_word = replace(second, reply={**second.reply, "content": "Well"})
        records = ((), (first,), (first, second), *((first, one) for one in (other_token, other_odds, other_word)))
        versions = {version_of(session, turns) for turns in records}
        session.fault = EngineError("it is broken", remedy="mend it")
        versions.add(version_of(session, (first, second)))
        session.last_finish = FinishReason.LENGTH
        versions.add(version_of(session, (first, second)))
        assert len(versions) == len(records) + 2


async def test_a_new_session_with_the_same_id_has_another_version() -> None:
    async with house([]) as h:
        versions = []
        for _ in range(2):
            await h.session()
            versions.append((await h.http.post("/sessions/session-1/complete")).json()["version"])
            await h.http.delete(f"/sessions/session-1?version={versions[-1]}")
        assert versions[0] != versions[1]


@pytest.mark.parametrize("state", [SessionState.COMPLETED, SessionState.EXPIRED])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_that_comes_to_its_end_late_changes_nothing(
    tmp_path: Path, state: SessionState, fails: bool
) -> None:
    """The call was let in before the end. When the engine answers or fails it, the session is over."""
    ends: list[Callable[[], object]] = []

    def answer(request: GenerateRequest) -> str:
        for end in ends:
            end()
            if fails:
                raise EngineError("it broke", remedy="mend it")
        return answers(request)

    async with SqliteStore(tmp_path / "s.sqlite") as store, house(answer, store=store) as h:
        await h.session(sampling=None)
        await h.chat("session-1", HI)
        session = h.gateway.sessions.find("session-1")
        ends.append(lambda: h.gateway.sessions.end(session, state))
        with pytest.raises(RefusedError):
            await h.gateway.exchange.answer(session, Call(tuple(HI)), Ask(), None)
        told = (await h.http.get("/sessions/session-1")).json()
        assert (told["state"], told["turns"]) == (state, 1)
        assert told["version"] == session.version == version_of(session, store.turns("session-1"))
        assert (session.fault, session.last_finish) == (None, FinishReason.STOP)


async def test_whenever_a_session_is_completed_its_record_stays_what_was_told() -> None:
    """Many calls end at about the moment of completion. Each is in the record that `complete` tells, or never in it."""
    for delay in range(0, 12, 3):
        async with house(answers, steps=3) as h:
            await h.session()
            asking = [asyncio.create_task(h.post(PATH, {"messages": HI})) for _ in range(12)]
            for _ in range(delay):
                await asyncio.sleep(0.002)
            session = h.gateway.sessions.find("session-1")
            recorder = h.gateway.sessions.end(session)
            version, turns = session.version, len(recorder)
            codes = [(await one).status_code for one in asking]
            assert codes.count(200) <= turns
            assert set(codes) <= {200, 410}
            assert len(recorder) == turns
            assert version_of(session, recorder.turns) == session.version == version


async def test_only_the_gateways_key_reads_a_record() -> None:
    async with house(["Hello."]) as h:
        key = (await h.post("/sessions/session-1", {})).json()["key"]
        answer = await h.http.get("/sessions/session-1/record", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 403


async def test_a_gateway_that_keeps_no_records_does_not_show_an_empty_one() -> None:
    async with house(["Hello."]) as h:
        await h.session()
        await h.chat("session-1", HI)
        assert len((await h.http.get("/sessions/session-1/record")).json()["chains"]) == 1
        await h.http.post("/sessions/session-1/complete")
        for path in ("chains", "record"):
            answer = await h.http.get(f"/sessions/session-1/{path}")
            assert answer.status_code == 410
            assert "only with the run" in answer.json()["error"]["message"]
