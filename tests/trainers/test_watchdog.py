"""R4: every wait of a trainer has an end; when nothing moves, the error says who waits on whom."""

from __future__ import annotations

import asyncio

import pytest

from loopwright.errors import LearnerLostError, StalledError
from loopwright.testing import run_virtually
from loopwright.trainers.watchdog import Watchdog


class Moving:
    """Something that moves when it is told to."""

    def __init__(self) -> None:
        self.count = 0

    def watchdog(self, seconds: float, stop: asyncio.Event | None = None) -> Watchdog:
        return Watchdog(
            stop=stop or asyncio.Event(),
            seconds=seconds,
            progress=lambda: self.count,
            describe=lambda: f"  {self.count} so far",
        )


async def test_a_wait_gives_back_what_the_work_returns():
    assert await Moving().watchdog(1.0).wait("the answer", asyncio.sleep(0, 42)) == 42


async def test_what_the_work_raises_is_raised_as_it_is():
    async def fails() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await Moving().watchdog(1.0).wait("nothing", fails())


async def test_a_wait_in_which_nothing_moves_ends_with_an_error_and_the_work_is_cancelled():
    cancelled = False

    async def hangs() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled = True

    with pytest.raises(StalledError) as caught:
        await Moving().watchdog(0.02).wait("a batch for step 7", hangs())
    assert cancelled
    assert "the trainer waits for a batch for step 7\n  0 so far" in caught.value.message
    assert "trainer.stall_seconds" in caught.value.remedy
    assert caught.value.facts == {"waits_for": "a batch for step 7"}


async def test_a_learner_that_turns_out_to_be_lost_is_why_nothing_moved():
    """Both are noticed after the same time, and only a loss is survived."""

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LearnerLostError.of_rank(1, "it has said nothing for 10 s", "") from None

    with pytest.raises(LearnerLostError, match="rank 1"):
        await Moving().watchdog(0.02).wait("the engines", hangs())


def test_slow_work_is_waited_for_as_long_as_something_moves():
    moving = Moving()

    async def slow() -> str:
        for _ in range(8):
            await asyncio.sleep(0.02)
            moving.count += 1
        return "done"

    # The clock is virtual: on a busy machine, a short pause is a long one.
    assert run_virtually(moving.watchdog(0.08).wait("slow work", slow())) == "done"


async def test_a_run_that_is_to_stop_waits_no_longer_and_the_work_is_cancelled_first():
    stop, log = asyncio.Event(), []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    asyncio.get_running_loop().call_later(0.01, stop.set)
    watchdog = Moving().watchdog(5.0, stop)
    await watchdog.wait_or_stop("forever", hangs())
    assert log == ["cleaned up"]
    assert watchdog.is_stopping


async def test_work_has_ended_also_if_its_caller_is_cancelled_twice():
    ended = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    waiting = asyncio.create_task(Moving().watchdog(5.0).wait_or_stop("forever", slow_to_end()))
    for _ in range(2):
        await asyncio.sleep(0.01)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def breaks_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("the disk is full") from None


async def test_what_goes_wrong_while_work_is_cancelled_for_a_stop_is_raised():
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(ValueError, match="the disk is full"):
        await Moving().watchdog(5.0, stop).wait_or_stop("forever", breaks_when_cancelled())


async def test_what_goes_wrong_while_stalled_work_is_cancelled_is_told_besides():
    with pytest.raises(StalledError) as caught:
        await Moving().watchdog(0.02).wait("forever", breaks_when_cancelled())
    assert caught.value.__notes__ == ["besides, ValueError: the disk is full"]


async def test_a_stall_is_also_seen_by_a_wait_that_could_be_stopped():
    with pytest.raises(StalledError):
        await Moving().watchdog(0.02).wait_or_stop("forever", asyncio.sleep(30))
