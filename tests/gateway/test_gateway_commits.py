"""A turn is committed whole or not at all (S2), whatever happens meanwhile: the store and the memory of it agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest
from gateway_house import Desk, house

from loopwright.errors import RefusedError, RunError
from loopwright.gateway.call import Call
from loopwright.gateway.session import Session, SessionSettings, SessionState
from loopwright.gateway.store import SqliteStore
from loopwright.gateway.tries import Ask
from loopwright.render.recording.recorded import Recorded
from loopwright.types import ChainStart, GenerateRequest

HI = [{"role": "user", "content": "Hi"}]
PATH = "/session-1/v1/chat/completions"


def numbered(request: GenerateRequest) -> str:
    return f"Answer {len(request.prompt_ids)} of {request.sampling.seed % 997}."


class Told(SqliteStore):
    """Tells when a turn is stored, before anybody else hears of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.then: Callable[[], object] = int

    def add(self, session: Session, call_id: str, turns: Sequence[Recorded]) -> None:
        super().add(session, call_id, turns)
        self.then()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("samples", [1, 3])
async def test_a_client_that_leaves_while_its_turn_is_stored(tmp_path: Path, samples: int) -> None:
    async with Told(tmp_path / "sessions.sqlite") as store, house(numbered, store=store) as h:
        await h.session()
        asking = asyncio.create_task(h.post(PATH, {"messages": HI, "n": samples}))
        store.then = asking.cancel
        with pytest.raises(asyncio.CancelledError):
            await asking
        store.then = int
        await until(lambda: not h.gateway.sessions.find("session-1").running)
        retry = {"x-stainless-retry-count": "1"}
        told = (await h.post(PATH, {"messages": HI, "n": samples}, **retry)).json()
        kept = store.turns("session-1")
        assert [turn.answer for turn in kept] == [turn.answer for turn in h.recorder().turns]
        assert len(kept) == len(h.chains()) == len(h.engine.log) == samples
        assert len({choice["index"] for choice in told["choices"]}) == samples
        assert [choice["message"]["content"] for choice in told["choices"]] == [turn.reply["content"] for turn in kept]


async def test_a_session_that_ends_while_a_turn_is_stored_has_that_turn(tmp_path: Path) -> None:
    async with Told(tmp_path / "sessions.sqlite") as store, house(numbered, store=store) as h:
        await h.session()
        ending: list[asyncio.Task[httpx.Response]] = []
        store.then = lambda: ending.append(asyncio.create_task(h.http.post("/sessions/session-1/complete")))
        assert (await h.post(PATH, {"messages": HI})).status_code == 200
        done = (await ending[0]).json()
        assert (done["turns"], done["state"]) == (1, SessionState.COMPLETED)
        assert len(store.turns("session-1")) == 1


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_session_that_ends_before_a_turn_is_stored_never_has_it(tmp_path: Path, turns: int) -> None:
    last: list[Callable[[], None]] = []

    def answer(request: GenerateRequest) -> str:
        for end in last:
            end()
        return numbered(request)

    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(answer, store=store) as h:
        await h.session()
        messages = HI
        for _ in range(turns):
            messages = [*messages, await h.chat("session-1", messages), *HI]
        session = h.gateway.sessions.find("session-1")
        # The next call is let in before the end, and comes to its commit after it.
        last.append(lambda: h.gateway.sessions.delete(session))
        with pytest.raises(RefusedError, match="takes no calls"):
            await h.gateway.exchange.answer(session, Call(tuple(messages)), Ask(), None)
        assert store.turns("session-1") == []


async def test_equal_questions_are_as_many_samples_at_whatever_moment_they_come() -> None:
    desk = await Desk(numbered).open()
    body = json.dumps({"messages": HI}).encode()

    async def ask(moment: int) -> str:
        for _ in range(moment):
            await asyncio.sleep(0)
        _, answer = await desk.ask(PATH, body)
        return str(json.loads(answer)["id"])

    ids = await asyncio.gather(*(ask(moment) for moment in range(60)))
    assert len(set(ids)) == len(desk.engine.requests) == 60


async def test_an_idempotency_key_gets_its_own_answer_again() -> None:
    async with house(numbered) as h:
        await h.session()
        first, second = [(await h.post(PATH, {"messages": HI}, **{"idempotency-key": key})).json() for key in "ab"]
        for key, answer in (("a", first), ("b", second)):
            assert (await h.post(PATH, {"messages": HI}, **{"idempotency-key": key})).json()["id"] == answer["id"]
        assert len(h.engine.requests) == 2


async def test_a_second_try_after_a_first_that_failed_is_a_sample_of_its_own() -> None:
    async with house(numbered, faults={1}) as h:
        await h.session()
        other = (await h.post(PATH, {"messages": HI})).json()
        failed = await h.post(PATH, {"messages": HI}, **{"idempotency-key": "a"})
        again = (await h.post(PATH, {"messages": HI}, **{"idempotency-key": "a"})).json()
        assert failed.status_code == 503
        assert again["id"] != other["id"]
        assert len(h.chains()) == 2


class RoomForOne(SqliteStore):
    """Its disk has room for one turn at a time."""

    def add(self, session: Session, call_id: str, turns: Sequence[Recorded]) -> None:
        if len(turns) > 1:
            raise RunError("the disk is full", remedy="make room")
        super().add(session, call_id, turns)


async def test_all_samples_of_a_call_are_kept_or_none(tmp_path: Path) -> None:
    async with RoomForOne(tmp_path / "sessions.sqlite") as store, house(numbered, store=store) as h:
        await h.session()
        assert (await h.post(PATH, {"messages": HI, "n": 3})).status_code == 500
        assert len(h.recorder()) == len(store.turns("session-1")) == 0
        await h.chat("session-1", HI)
        assert len(h.chains()) == len(store.turns("session-1")) == 1


async def test_what_cannot_be_written_takes_nobody_else_with_it(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.sqlite") as store:
        first, second = (Session(f"session-{n}", f"key-{n}", SessionSettings(), 0.0) for n in (1, 2))
        store.create(first)
        with pytest.raises(RunError, match="cannot be used"):
            store.create(first)
        store.create(second)
        assert len(store.sessions()) == 2


async def test_a_file_belongs_to_one_gateway(tmp_path: Path) -> None:
    file = tmp_path / "sessions.sqlite"
    async with SqliteStore(file):
        with pytest.raises(RunError, match="another gateway"):
            async with SqliteStore(file):
                pass
    async with SqliteStore(file) as store:
        assert store.sessions() == []


async def test_samples_of_another_conversation_belong_to_it() -> None:
    async with house(numbered) as h:
        await h.session()
        await h.chat("session-1", HI)
        await h.post(PATH, {"messages": [{"role": "user", "content": "Something else."}], "n": 2})
        assert [chain.start for chain in h.chains()] == [ChainStart.FIRST, ChainStart.SEPARATE, ChainStart.BRANCH]


async def test_instructions_are_those_of_the_response_that_is_continued() -> None:
    """Sent as an item first, then as instructions: only the latter are replaced by those of the next request."""
    async with house(numbered) as h:
        await h.session()
        system, path = {"role": "system", "content": "Be brief."}, "/session-1/v1/responses"
        first = (await h.post(path, {"input": [system, *HI]})).json()
        history = [*HI, *first["output"], {"role": "user", "content": "And?"}]
        second = (await h.post(path, {"instructions": "Be brief.", "input": history})).json()
        on = {"instructions": "Be long.", "previous_response_id": second["id"], "input": "More?"}
        assert (await h.post(path, on)).status_code == 200
        told = [message["content"] for message in h.recorder().conversation(2) if message["role"] == "system"]
        assert told == ["Be long."]
