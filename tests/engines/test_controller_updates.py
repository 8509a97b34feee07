"""The controller at a weight update: who waits, who is interrupted, and who goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controller_pool import FILE, ask, pool, start, under_way, whole
from counting import CountingEngine, Nursery

from loopwright.types import FinishReason, GenerateRequest, Generation, PauseMode

pytestmark = pytest.mark.usefixtures("quick_restarts")


async def test_a_loop_that_is_not_resumable_sees_one_slower_call() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        await asyncio.sleep(0.01)
        assert not task.done()
        await controller.load(1, FILE)
        await controller.resume()
        generation = await task
    assert whole(generation)
    assert set(generation.versions) == {0, 1}
    first, second = nursery.engines[0].requests
    assert second.prompt_ids == tuple(range(len(second.prompt_ids))), "prompt and partial answer"
    assert second.sampled_before == len(second.prompt_ids) - len(first.prompt_ids) > 0


async def test_a_resumable_call_returns_with_what_it_has() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask(resumable=True))
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        generation = await task
    assert generation.finish is FinishReason.ABORT
    assert 0 < len(generation.ids) < 40


async def test_when_an_aborting_pause_returns_no_resumable_call_is_left_that_came_before() -> None:
    """Not even one whose request was still on its way to its engine."""

    class Late(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            await asyncio.sleep(0.03)
            return await super().generate(request, on_part)

    nursery = Nursery(make=Late)
    async with pool(nursery) as controller:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("loopwright.engines.controller.STRAGGLER_SECONDS", 0.05)
            tasks = start(controller, ask("a/0", resumable=True), ask("b/0"))
            await asyncio.sleep(0.01)
            await controller.pause(PauseMode.ABORT)
            await asyncio.sleep(0)
        assert (await tasks[0]).ids == ()
        assert not tasks[1].done()
        await controller.resume()
        assert whole(await tasks[1])


async def test_new_calls_wait_while_the_pool_is_paused() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        for mode in PauseMode:
            await controller.pause(mode)
            tasks = start(controller, ask("a/0", resumable=True), ask("b/0"))
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in tasks)
            await controller.resume()
            assert all([whole(await task) for task in tasks])


async def test_keep_goes_on_in_place() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.KEEP)
        await controller.load(1)
        await controller.resume()
        generation = await task
    assert whole(generation)
    assert set(generation.versions) == {0, 1}
    assert len(nursery.engines[0].requests) == 1


async def test_a_pool_that_was_paused_by_abort_can_be_drained_without_waiting_for_those_who_wait() -> None:
    """As a trainer does that makes sure that nothing moves."""
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        async with asyncio.timeout(1):
            await controller.pause(PauseMode.DRAIN)
        assert not task.done()
        await controller.resume()
        assert whole(await task)


async def test_to_drain_what_was_kept_lets_it_finish() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.KEEP)
        await controller.pause(PauseMode.DRAIN)
        assert whole(await task)
        await controller.resume()
