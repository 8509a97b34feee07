"""The budget of all turns holds for whatever is sampled at the same time (S5), a call that waits for it ends like any
other, and samples with a seed differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from gateway_house import House, RecordingEngine, house, odd_ids

from loopwright.errors import RefusedError
from loopwright.gateway.call import Call
from loopwright.gateway.session import Session, SessionState
from loopwright.gateway.tries import Ask
from loopwright.ports import OnPart
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling

HI = [{"role": "user", "content": "Hi"}]
PATH = "/session-1/v1/chat/completions"
LONG = "A long answer that never ends."


class SlowEngine(RecordingEngine):
    """Answers when it is told to."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda request: text, encode=odd_ids)
        self.asked = asyncio.Semaphore(0)
        self.may_answer = asyncio.Event()

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        self.asked.release()
        await self.may_answer.wait()
        return await super().generate(request, on_part)


@asynccontextmanager
async def all_held(text: str = LONG) -> AsyncIterator[tuple[House, SlowEngine, Session, asyncio.Task[httpx.Response]]]:
    """A session whose first call may sample all of its 10 tokens, and is under way."""
    engine = SlowEngine(text)
    async with house([], engine=engine) as h:
        session = h.gateway.sessions.find(await h.session(max_tokens=10))
        holder = asyncio.create_task(h.post(PATH, {"messages": HI}))
        await engine.asked.acquire()
        yield h, engine, session, holder


async def until_running(session: Session, calls: int) -> None:
    async with asyncio.timeout(5):
        while len(session.running) != calls:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("samples", "budgets"), [(3, [4, 3, 3]), (12, [1] * 10), (2, [5, 5]), (1, [10])])
async def test_samples_of_a_call_share_the_budget_of_all_turns(samples: int, budgets: list[int]) -> None:
    async with house(lambda request: LONG) as h:
        await h.session(max_tokens=10, sampling=Sampling(max_new_tokens=10))
        answer = (await h.post(PATH, {"messages": HI, "n": samples})).json()
        assert [request.sampling.max_new_tokens for request, _ in h.engine.log] == budgets
        assert h.recorder().sampled_tokens == answer["usage"]["completion_tokens"] == 10
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * samples


async def test_calls_that_overlap_keep_the_budget_of_all_turns() -> None:
    engine = SlowEngine(LONG)
    async with house([], engine=engine) as h:
        await h.session(max_tokens=10, sampling=Sampling(max_new_tokens=7))
        asking = [asyncio.create_task(h.chat("session-1", HI)) for _ in range(4)]
        for _ in range(2):
            await engine.asked.acquire()
        engine.may_answer.set()
        await asyncio.gather(*asking)
        assert [request.sampling.max_new_tokens for request, _ in engine.log] == [7, 3]
        assert h.recorder().sampled_tokens == 10


async def test_a_call_waits_for_what_others_do_not_need() -> None:
    engine = SlowEngine("Hi.")
    async with house([], engine=engine) as h:
        await h.session(max_tokens=20)
        asking = [asyncio.create_task(h.chat("session-1", HI)) for _ in range(4)]
        await engine.asked.acquire()
        engine.may_answer.set()
        assert {reply["content"] for reply in await asyncio.gather(*asking)} == {"Hi."}
        assert [request.sampling.max_new_tokens for request, _ in engine.log] == [20, 16, 12, 8]


async def test_a_call_that_failed_gives_its_part_of_the_budget_back() -> None:
    async with house([LONG] * 2, faults={0}) as h:
        await h.session(max_tokens=10)
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        await h.chat("session-1", HI)
        assert h.recorder().sampled_tokens == 10


async def test_samples_with_a_seed_differ_and_the_first_is_as_if_it_were_alone() -> None:
    async with house(lambda request: "Hi.") as h:
        await h.session()
        for samples in (1, 3, 3):
            await h.post(PATH, {"messages": HI, "seed": 7, "n": samples})
        alone, *first = [request.sampling.seed for request, _ in h.engine.log]
        assert first[:3] == first[3:]
        assert first[0] == alone
        assert len(set(first)) == 3


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("way", ["complete", "delete", "expire"])
async def test_a_session_that_ends_ends_the_calls_that_wait_for_its_budget(way: str, streamed: bool) -> None:
    async with all_held() as (h, engine, session, holder), asyncio.timeout(10):
        waiter = asyncio.create_task(h.post(PATH, {"messages": HI, "stream": streamed}))
        await until_running(session, 2)
        if way == "complete":
            await h.http.post("/sessions/session-1/complete")
        elif way == "delete":
            await h.http.delete("/sessions/session-1")
        else:
            h.gateway.sessions.end(session, SessionState.EXPIRED)
        for response in await asyncio.gather(holder, waiter):
            assert response.status_code == 410
            assert response.headers["x-should-retry"] == "false"
        assert (session.held, session.running, session.tries.flights) == (0, set(), {})
        assert engine.asked.locked(), "the engine never heard of the call that waited"


async def test_a_session_does_not_expire_while_a_call_waits_for_its_budget() -> None:
    async with all_held("Hi.") as (h, engine, session, holder), asyncio.timeout(10):
        waiter = asyncio.create_task(h.post(PATH, {"messages": HI}))
        await until_running(session, 2)
        session.used = 0.0
        h.gateway.sessions.end_idle()
        assert session.state is SessionState.OPEN
        engine.may_answer.set()
        assert [response.status_code for response in await asyncio.gather(holder, waiter)] == [200, 200]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_while_it_waits_for_the_budget_leaves_nothing_behind(streamed: bool) -> None:
    async with all_held("Hi.") as (h, engine, session, holder), asyncio.timeout(10):
        body = {"messages": HI, "stream": streamed}
        with pytest.raises(httpx.ReadTimeout):
            await h.http.post(PATH, json=body, timeout=httpx.Timeout(5, read=0.2))
        await until_running(session, 1)
        engine.may_answer.set()
        assert (await holder).status_code == 200
        assert (await h.chat("session-1", HI))["content"] == "Hi."
        assert [request.sampling.max_new_tokens for request, _ in engine.log] == [10, 6]
        assert (session.held, session.tries.flights) == (0, {})


async def test_a_client_that_leaves_gives_its_part_to_those_who_wait() -> None:
    engine = SlowEngine(LONG)
    async with house([], engine=engine) as h, asyncio.timeout(10):
        session = h.gateway.sessions.find(await h.session(max_tokens=10))
        leaving = asyncio.create_task(h.http.post(PATH, json={"messages": HI}, timeout=httpx.Timeout(5, read=0.3)))
        await engine.asked.acquire()
        waiter = asyncio.create_task(h.chat("session-1", HI))
        await until_running(session, 2)
        with pytest.raises(httpx.ReadTimeout):
            await leaving
        engine.may_answer.set()
        await waiter
        assert [request.sampling.max_new_tokens for request, _ in engine.log] == [10]
        assert h.recorder().sampled_tokens == 10


async def test_a_second_try_at_a_call_that_waits_for_the_budget_gets_the_same_answer() -> None:
    async with all_held("Hi.") as (h, engine, session, holder), asyncio.timeout(10):
        other = {"messages": [{"role": "user", "content": "Ho"}]}
        tries = []
        for number in (2, 3):
            tries.append(asyncio.create_task(h.post(PATH, other, **{"idempotency-key": "a"})))
            await until_running(session, number)
        engine.may_answer.set()
        first, second = [response.json() for response in await asyncio.gather(*tries)]
        assert (await holder).status_code == 200
        assert first["id"] == second["id"]
        assert len(engine.log) == 2


async def test_what_is_wrong_with_a_call_is_told_before_it_waits() -> None:
    async with all_held() as (h, engine, _, holder), asyncio.timeout(10):
        long = [{"role": "user", "content": "x" * 5000}]
        assert (await h.post(PATH, {"messages": long})).status_code == 400
        assert not holder.done()
        engine.may_answer.set()
        await holder


async def test_a_budget_that_others_have_used_up_is_an_empty_answer_for_who_waited() -> None:
    async with all_held() as (h, engine, session, holder), asyncio.timeout(10):
        waiter = asyncio.create_task(h.post(PATH, {"messages": HI}))
        await until_running(session, 2)
        engine.may_answer.set()
        choices = [response.json()["choices"][0] for response in await asyncio.gather(holder, waiter)]
        assert [choice["finish_reason"] for choice in choices] == [FinishReason.LENGTH.value] * 2
        assert choices[1]["message"]["content"] == ""
        assert len(engine.log) == 1


async def test_a_call_without_http_that_waited_until_its_session_was_over_asks_nobody() -> None:
    async with all_held() as (h, engine, session, holder), asyncio.timeout(10):
        call = Call(tuple(HI))
        waiter = asyncio.create_task(h.gateway.exchange.answer(session, call, Ask(), None))
        await asyncio.sleep(0.01)
        h.gateway.sessions.end(session)
        with pytest.raises(RefusedError, match="takes no calls"):
            await waiter
        assert (await holder).status_code == 410
        assert engine.asked.locked()
