"""What a session tells of time: when its agent first asked, and for how long the engines answered nobody."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest
from gateway_house import House, RecordingEngine, house, odd_ids

from loopwright.errors import EngineLostError
from loopwright.gateway.policy import SessionPolicy
from loopwright.ports import OnPart, ServedPolicy
from loopwright.types import GenerateRequest, Generation, RolloutKey, RolloutRequest, Sampling, Split, Task

HI = [{"role": "user", "content": "Hi"}]
PATH = "/session-1/v1/chat/completions"
FACTS = ("first_call", "held_seconds", "held_before_first_call")


@dataclass
class HeldClock:
    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


async def facts(h: House) -> tuple[Any, ...]:
    told = (await h.http.get("/sessions/session-1")).json()
    return tuple(told[name] for name in FACTS)


async def test_a_session_tells_its_first_call_and_its_held_seconds_also_while_a_call_is_out() -> None:
    held = HeldClock()
    async with house(["Hello.", "Ho."], held=held, seconds=lambda request: 0.3) as h:
        await h.session()
        assert await facts(h) == (None, 0.0, None)
        held.seconds += 5
        before = time.time()
        asking = asyncio.create_task(h.chat("session-1", HI))
        async with asyncio.timeout(5):
            while not h.engine.requests:
                await asyncio.sleep(0.005)
        held.seconds += 2
        first, seconds, earlier = await facts(h)
        assert not asking.done()
        assert before <= first <= time.time()
        assert (seconds, earlier) == (7.0, 5.0)
        await asking
        await h.chat("session-1", HI)
        told = (await h.http.post("/sessions/session-1/complete")).json()
        assert tuple(told[name] for name in FACTS) == (first, 7.0, 5.0)
        held.seconds += 50
        assert (await facts(h)) == (first, 7.0, 5.0), "nobody waits for a session that is over"


async def test_a_call_that_fails_is_a_first_call_too() -> None:
    async with house(["Hello."], faults={0}) as h:
        await h.session()
        assert (await h.post(PATH, {"messages": HI})).status_code == 503
        first, *_ = await facts(h)
        await h.chat("session-1", HI)
        assert first is not None
        assert (await facts(h))[0] == first


class AwayEngine(RecordingEngine):
    """Nobody is there for the first calls."""

    away = 2

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if self.away:
            self.away -= 1
            raise EngineLostError("nobody is there", remedy="start it")
        return await super().generate(request, on_part)


async def test_waiting_for_an_engine_that_went_away_is_held() -> None:
    async with house([], engine=AwayEngine(["Hello."], encode=odd_ids), wait_seconds=10) as h:
        await h.session()
        await h.chat("session-1", HI)
        _, seconds, earlier = await facts(h)
        assert seconds >= 0.3  # two pauses: 0.1 and 0.2 seconds
        assert earlier == 0.0


def request(seconds: float = 60.0) -> RolloutRequest:
    task = Task("1", tuple(HI))
    return RolloutRequest(Split.TRAIN, RolloutKey("tasks", 0, 0, 0), task, Sampling(), seconds)


async def test_a_policy_tells_its_own_seconds_since_its_start_and_since_the_first_call() -> None:
    held = HeldClock()
    async with house(["Hello."], held=held) as h:
        policy = h.gateway.policies().policy(request(), resumable=False)
        assert isinstance(policy, ServedPolicy)
        assert policy.request.seconds == 60.0
        async with policy.endpoint() as endpoint:
            await asyncio.sleep(0.2)
            assert policy.times().since_first_call is None
            held.seconds += 0.1  # of the 0.2 seconds, the engines answered nobody in half
            await h.http.post(
                endpoint.base_url + "/chat/completions",
                json={"messages": HI},
                headers={"authorization": f"Bearer {endpoint.api_key}"},
            )
            early = policy.times()
            await asyncio.sleep(0.2)
            held.seconds += 0.1
            times = policy.times()
    assert early.since_first_call is not None
    assert times.since_first_call is not None
    assert 0.1 <= early.total - early.since_first_call < early.total
    assert times.total - times.since_first_call == pytest.approx(early.total - early.since_first_call, abs=0.01)
    assert times.since_first_call - early.since_first_call == pytest.approx(0.1, abs=0.08)


async def test_an_endpoint_has_what_a_program_needs() -> None:
    async with house(["Hello."], name="/models/tiny") as h:
        policy: SessionPolicy = h.gateway.policies().policy(request(), resumable=False)
        async with policy.endpoint() as endpoint:
            session = endpoint.anthropic_url.rpartition("/")[2]
            assert endpoint.base_url == f"{h.gateway.base_url}/sessions/{session}/v1"
            assert endpoint.anthropic_url == f"{h.gateway.base_url}/sessions/{session}"
            assert endpoint.model == "tiny"
