"""Whoever waits looks again after each change, and misses none."""

from __future__ import annotations

import asyncio

from loopwright.core.wakeup import WakeUp


async def test_who_waits_looks_again_after_each_change() -> None:
    changed, state, looks = WakeUp(), [0], [0]

    def is_two() -> bool:
        looks[0] += 1
        return state[0] == 2

    waiting = asyncio.create_task(changed.until(is_two))
    for value in (1, 2):
        await asyncio.sleep(0)
        assert not waiting.done()
        state[0] = value
        changed.notify()
    await waiting
    assert looks == [3]


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    await WakeUp().until(lambda: True)


async def test_a_change_between_a_look_and_the_wait_is_not_missed() -> None:
    changed = WakeUp()
    news = changed.news
    changed.notify()
    await asyncio.wait_for(news.wait(), 1)
    assert not changed.news.is_set()


async def test_all_who_wait_are_woken() -> None:
    changed, ready = WakeUp(), [False]
    waiting = [asyncio.create_task(changed.until(lambda: ready[0])) for _ in range(3)]
    await asyncio.sleep(0)
    ready[0] = True
    changed.notify()
    await asyncio.gather(*waiting)
