"""An agent is charged for its own seconds alone, exactly and once (R2)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.timeouts import AgentClock, ClockTimeout
from loopwright.engines.timed import TimedClient
from loopwright.errors import EngineError, OutOfTimeError
from loopwright.testing import ScriptedEngine
from loopwright.testing.virtual_time import run_virtually
from loopwright.types import GenerateRequest, Sampling


class Holds:
    """A clock of held seconds that runs in the given stretches of time."""

    def __init__(self, *stretches: tuple[float, float]) -> None:
        self.stretches = stretches

    def __call__(self) -> float:
        now = asyncio.get_running_loop().time()
        return sum(max(0.0, min(now, end) - start) for start, end in self.stretches)

    def own(self, stretches: list[tuple[int, int]]) -> float:
        """The seconds of the union of `stretches` in which nothing was held; all are whole numbers."""
        seconds = {second for start, end in stretches for second in range(start, end)}
        return sum(not any(start <= second < end for start, end in self.stretches) for second in seconds)


stretch = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(stretch, max_size=6), st.lists(st.integers(0, 60), max_size=6, unique=True))
def test_overlapping_calls_are_charged_once_and_never_for_a_hold(calls: list[tuple[int, int]], ends: list[int]) -> None:
    borders = sorted(ends[: len(ends) // 2 * 2])
    holds = Holds(*zip(borders[::2], borders[1::2], strict=True))

    async def call(clock: AgentClock, start: int, end: int) -> None:
        await asyncio.sleep(start)
        began, held = clock.call_begins(), holds()
        await asyncio.sleep(end - start)
        clock.call_ends(began, (held, holds()))

    async def case() -> None:
        clock = AgentClock()
        async with asyncio.TaskGroup() as tasks:
            for start, end in calls:
                tasks.create_task(call(clock, start, end))
        await asyncio.sleep(100 - asyncio.get_running_loop().time())
        out = {second for start, end in calls for second in range(start, end)}
        assert clock.seconds() == pytest.approx(100 - len(out) + holds.own(calls))

    run_virtually(case())


def test_the_clock_stands_still_while_a_call_is_out() -> None:
    async def case() -> None:
        clock = AgentClock()
        await asyncio.sleep(2)
        began = clock.call_begins()
        await asyncio.sleep(50)
        assert clock.seconds() == 2
        clock.call_ends(began, (0.0, 40.0))
        assert clock.seconds() == 12
        await asyncio.sleep(1)
        assert clock.seconds() == 13
        began = clock.call_begins()
        await asyncio.sleep(5)
        clock.call_ends(began, None)
        assert clock.seconds() == 18, "nobody has told how long it was held, and here nothing is known"

    run_virtually(case())


def test_calls_that_always_overlap_are_charged_as_they_return() -> None:
    async def case() -> None:
        clock = AgentClock()
        first = clock.call_begins()
        for _ in range(10):
            await asyncio.sleep(1)
            second = clock.call_begins()
            await asyncio.sleep(1)
            clock.call_ends(first, (0.0, 0.0))
            first = second
        assert clock.seconds() == 20

    run_virtually(case())


def test_a_timeout_ends_by_its_own_clock() -> None:
    holds = Holds((5, 105))

    async def case() -> None:
        def own() -> float:
            return asyncio.get_running_loop().time() - holds()

        limit = ClockTimeout(10, own)
        with pytest.raises(TimeoutError):
            async with limit:
                await asyncio.sleep(1000)
        assert limit.expired()
        assert asyncio.get_running_loop().time() == pytest.approx(110, abs=0.2)

    run_virtually(case())


def test_whoever_holds_the_engines_ends_a_call_and_tells_how_long_it_was_held() -> None:
    holds = Holds((1, 11))

    async def case() -> None:
        client = TimedClient(ScriptedEngine(["long"], seconds=lambda request: 20.0), holds)
        request = GenerateRequest("a", (1, 2), Sampling(), seconds=15.0)
        answered = await client.generate(request)
        assert answered.held == (0.0, 10.0)
        loop = asyncio.get_running_loop()
        assert loop.time() == 20, "10 of its 20 s were held"
        with pytest.raises(OutOfTimeError, match="within the 15 s") as ended:
            await client.generate(request)
        assert loop.time() == 35
        assert ended.value.facts["held"] == (10, 10)

    run_virtually(case())


async def test_a_failed_call_tells_how_long_it_was_held_too() -> None:
    client = TimedClient(ScriptedEngine(["a"], faults={0}), lambda: 3.0)
    with pytest.raises(EngineError) as failed:
        await client.generate(GenerateRequest("a", (1,), Sampling(), seconds=5.0))
    assert failed.value.facts["held"] == (3.0, 3.0)
