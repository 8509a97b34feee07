"""A second try gets the answer of its own first try, or a sample of its own: never what another call was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gateway_house import House, house

from loopwright.gateway.store import SqliteStore
from loopwright.types import GenerateRequest

HI = [{"role": "user", "content": "Hi"}]
PATH = "/session-1/v1/chat/completions"
NO_WISHES: Mapping[str, Any] = {}
RETRY: dict[str, Any] = {"x-stainless-retry-count": "1"}
FIRST: dict[str, Any] = {"idempotency-key": "a"}
SECOND: dict[str, Any] = {"idempotency-key": "b"}


def numbered(request: GenerateRequest) -> str:
    return f"Answer {len(request.prompt_ids)} of {request.sampling.seed % 997}."


async def asked(h: House, wishes: Mapping[str, Any] = NO_WISHES, **headers: str) -> str:
    return str((await h.post(PATH, {"messages": HI, **wishes}, **headers)).json()["id"])


async def lose(
    h: House, monkeypatch: pytest.MonkeyPatch, wishes: Mapping[str, Any] = NO_WISHES, **headers: str
) -> None:
    """An answer that is committed, and does not reach its client."""

    def gone(self: Any, session: Any, answers: Any) -> None:
        """The client went before the last byte."""

    with monkeypatch.context() as patch:
        patch.setattr("loopwright.gateway.exchange.Exchange.delivered", gone)
        await h.post(PATH, {"messages": HI, **wishes}, **headers)


async def test_the_retry_of_a_call_that_failed_does_not_get_anothers_answer() -> None:
    async with house(numbered, faults={0}) as h:
        await h.session()
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        other = await asked(h)
        assert await asked(h, **RETRY) != other
        assert len(h.chains()) == 2


async def test_the_retry_of_a_call_that_failed_leaves_a_lost_answer_to_its_own_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with house(numbered, faults={0}) as h:
        await h.session()
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        await lose(h, monkeypatch)
        (lost,) = [turn.answer for turn in h.recorder().turns]
        assert (await asked(h, **RETRY)).removeprefix("chatcmpl-") != lost
        assert (await asked(h, **RETRY)).removeprefix("chatcmpl-") == lost
        assert len(h.chains()) == 2


async def test_the_retry_of_a_call_that_failed_waits_for_nobody() -> None:
    async with house(numbered, faults={0}, seconds=lambda request: 0.4) as h, asyncio.timeout(10):
        await h.session()
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        other = asyncio.create_task(asked(h))
        while len(h.engine.requests) < 2:
            await asyncio.sleep(0.01)
        again = asyncio.create_task(asked(h, **RETRY))
        while len(h.engine.requests) < 3:
            await asyncio.sleep(0.01)
        assert not other.done()
        assert await other != await again


async def test_a_lost_answer_is_given_to_one_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(numbered) as h:
        await h.session()
        await lose(h, monkeypatch)
        ids = await asyncio.gather(*(asked(h, **RETRY) for _ in range(4)))
        assert len(set(ids)) == 4
        assert len(h.chains()) == 4


async def test_a_lost_answer_with_a_key_is_for_that_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(numbered) as h:
        await h.session()
        await lose(h, monkeypatch, **FIRST)
        (lost,) = [f"chatcmpl-{turn.answer}" for turn in h.recorder().turns]
        assert await asked(h, **SECOND) != lost
        assert await asked(h) != lost
        assert await asked(h, **FIRST) == lost


async def test_a_retry_among_equal_calls_that_were_all_delivered_is_a_new_sample() -> None:
    async with house(numbered) as h:
        await h.session()
        before = [await asked(h) for _ in range(2)]
        assert await asked(h, **RETRY) not in before


async def test_a_restarted_gateway_uses_no_seed_twice(tmp_path: Path) -> None:
    """A call that failed has used a seed too."""
    file = tmp_path / "sessions.sqlite"
    async with SqliteStore(file) as store, house(numbered, store=store, faults={0}) as h:
        await h.session()
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        before = await h.chat("session-1", HI)
        seeds = [request.sampling.seed for request in h.engine.requests]
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        after = await h.chat("session-1", HI)
        assert h.engine.requests[0].sampling.seed not in seeds
        assert after["content"] != before["content"]


async def test_a_restarted_gateway_knows_which_answers_were_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sessions.sqlite"
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        await h.session()
        delivered = await asked(h)
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert await asked(h, **RETRY) != delivered
        assert await asked(h) != delivered
        await lose(h, monkeypatch)
        lost = f"chatcmpl-{h.recorder().turns[-1].answer}"
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert await asked(h, **RETRY) == lost
        assert await asked(h) != lost


async def test_a_store_without_deliveries_has_delivered_all(tmp_path: Path) -> None:
    """What a gateway of before has left: to sample once more is sound, to give an answer to two clients is not."""
    import sqlite3

    file = tmp_path / "sessions.sqlite"
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        await h.session()
        delivered = await asked(h)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DROP TABLE IF EXISTS delivered")
        db.execute("UPDATE turns SET facts = CAST(json_remove(CAST(facts AS TEXT), '$.draws') AS BLOB)")
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert await asked(h) != delivered


async def test_a_lost_answer_is_not_given_to_who_asks_for_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for three tokens of the likeliest got a hundred at temperature 1."""
    file = tmp_path / "sessions.sqlite"
    wishes = {"max_tokens": 30, "stop": ["STOP"], "temperature": 0.5}
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        await h.session()
        await lose(h, monkeypatch, wishes)
        (lost,) = [f"chatcmpl-{turn.answer}" for turn in h.recorder().turns]
        assert await asked(h) != lost
        assert await asked(h, wishes | {"max_tokens": 3}, **RETRY) != lost
    async with SqliteStore(file) as store, house(numbered, store=store) as h:
        assert await asked(h, wishes, **RETRY) == lost
