"""A function that only this process has: it runs here, blocks nobody, and is blamed as any other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import JudgeError
from loopwright.judgers import NativeJudger
from loopwright.types import Episode, Scored, Task

TASK = Task.ask("t", "say something")
EPISODE = Episode(({"role": "assistant", "content": "four"},), ())


def judger(function: Callable[..., Any], timeout_seconds: float = 30.0, workers: int = 1) -> NativeJudger:
    return NativeJudger("mine", "object:__main__.mine", Path(), timeout_seconds, workers, given=function)


async def test_a_closure_is_called_in_a_thread_beside_the_event_loop() -> None:
    ticks, going_on = [0], threading.Event()

    def blocks(task: Task, episode: Episode) -> float:
        assert going_on.wait(5)
        return float(len(episode.answer))

    async def tick() -> None:
        while not ticks[0]:
            await asyncio.sleep(0.001)
            ticks[0] += 1
        going_on.set()

    async with judger(blocks) as mine:
        scored, _ = await asyncio.gather(mine.judge(TASK, EPISODE), tick())
    assert scored == Scored(4.0)


async def test_as_many_calls_run_at_a_time_as_there_are_workers() -> None:
    running, most = [0], [0]

    def counts(task: Task, episode: Episode) -> float:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        running[0] -= 1
        return 1.0

    async with judger(counts, workers=2) as mine:
        await asyncio.gather(*(mine.judge(TASK, EPISODE) for _ in range(6)))
    assert most[0] == 2


async def test_nobody_waits_for_a_call_past_its_deadline() -> None:
    let_go = threading.Event()
    async with judger(lambda task, episode: let_go.wait(5), timeout_seconds=0.05) as mine:
        with pytest.raises(JudgeError, match="mine"):
            await mine.judge(TASK, EPISODE)
    let_go.set()


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit("no idea"), StopIteration("no idea")])
async def test_what_it_raises_is_blamed_on_it(error: BaseException) -> None:
    def raises(task: Task, episode: Episode) -> float:
        raise error

    async with judger(raises) as mine:
        with pytest.raises(JudgeError, match="no idea"):
            await mine.judge(TASK, EPISODE)


async def test_a_call_with_wrong_parameters_is_blamed_on_it() -> None:
    async def takes_one(task: Task) -> float:
        return 1.0

    for function in (takes_one, lambda task: 1.0):
        async with judger(function) as mine:
            with pytest.raises(JudgeError, match="argument"):
                await mine.judge(TASK, EPISODE)
