"""Work that its owner cannot wait for for ever."""

from __future__ import annotations

import asyncio
import logging

import pytest

from loopwright.core import together
from loopwright.core.together import or_left_behind, to_its_end


async def test_what_refuses_to_be_cancelled_is_left_behind_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(together, "GRACE_SECONDS", 0.05)
    let_go = asyncio.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    caller = asyncio.create_task(or_left_behind(stubborn(), "the evaluation"))
    await asyncio.sleep(0)
    caller.cancel()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 5)
    assert "the evaluation was cancelled, did not end within 0.05 s" in caplog.text
    let_go.set()
    await asyncio.sleep(0.01)


async def test_what_ends_gives_its_result_and_what_is_cancelled_cleans_up() -> None:
    cleaned = []

    async def work(seconds: float) -> int:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            cleaned.append(seconds)
            raise
        return 7

    assert await or_left_behind(work(0), "it") == 7
    caller = asyncio.create_task(or_left_behind(work(60), "it"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert cleaned == [60]


async def test_what_goes_wrong_while_it_is_cancelled_is_told() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("the disk is full") from None

    caller = asyncio.create_task(or_left_behind(work(), "it"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(ValueError, match="the disk is full"):
        await caller


async def test_what_is_done_to_its_end_is_so_however_often_its_caller_is_cancelled() -> None:
    let_go, done = asyncio.Event(), []

    async def work() -> None:
        await let_go.wait()
        done.append(True)

    caller = asyncio.create_task(to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == [True]
