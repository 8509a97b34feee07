"""Virtual time passes at once, in order, and never hides a deadlock."""

from __future__ import annotations

import asyncio
import time

import pytest

from loopwright.errors import StalledError
from loopwright.testing import ScriptedEngine, run_virtually
from loopwright.types import GenerateRequest, Sampling


def test_sleepers_wake_in_the_order_of_their_clocks() -> None:
    async def main() -> tuple[list[int], float]:
        woken: list[int] = []

        async def sleeper(hours: int) -> None:
            await asyncio.sleep(3600 * hours)
            woken.append(hours)

        await asyncio.gather(*(sleeper(hours) for hours in (3, 1, 2)))
        return woken, asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run_virtually(main()) == ([1, 2, 3], 3 * 3600)
    assert time.monotonic() - began < 5


def test_timeouts_follow_the_virtual_clock() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == pytest.approx(600)


def test_waiting_for_nothing_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledError, match="nothing to run"):
        run_virtually(main())


def test_a_scripted_answer_takes_its_seconds_and_goes_on_where_it_was_cut() -> None:
    async def main() -> tuple[str, str, float]:
        engine = ScriptedEngine(["abcdefg"], seconds=lambda _: 8.0)
        request = GenerateRequest("r", (1, 2), Sampling())
        asking = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(3.5)
        await engine.abort("r")
        part = await asking
        rest = await engine.generate(request.after(part))
        return *("".join(map(chr, one.ids)) for one in (part, rest)), asyncio.get_running_loop().time()  # type: ignore[return-value]

    part, rest, seconds = run_virtually(main())
    assert (part, rest) == ("abc", "defg\0")
    assert seconds == pytest.approx(3.5 + 5)
