"""The controller: calls that are aborted or cancelled, and which engine gets which."""

from __future__ import annotations

import asyncio

import pytest
from controller_pool import FILE, ask, pool, start, under_way, until, whole
from counting import Nursery

from loopwright.errors import BudgetError
from loopwright.types import EngineCapacity, FinishReason, PauseMode

pytestmark = pytest.mark.usefixtures("quick_restarts")


async def test_leaving_ends_the_engines() -> None:
    nursery = Nursery()
    async with pool(nursery):
        pass
    assert nursery.engines[0].dead.is_set()


# Ending calls early.


async def test_an_aborted_call_returns_even_if_it_is_not_resumable() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.abort("a/0")
        assert (await task).finish is FinishReason.ABORT


async def test_a_call_that_waits_can_be_aborted() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        await controller.pause(PauseMode.DRAIN)
        [task] = start(controller, ask())
        await asyncio.sleep(0.01)
        await controller.abort("a/0")
        assert (await task).ids == ()


async def test_a_cancelled_call_is_taken_from_its_engine() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask(tokens=10_000))
        await under_way(nursery)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await controller.pause(PauseMode.DRAIN)
        assert nursery.engines[0]._live == {}


# More than one engine.


async def test_calls_go_to_the_engine_that_has_the_fewest() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two) as controller:
        await asyncio.gather(*start(controller, *(ask(f"s{i}/0") for i in range(10))))
    assert [len(n.engines[0].requests) for n in (one, two)] == [5, 5]


async def test_the_capacity_of_every_engine_is_told_also_while_one_is_replaced() -> None:
    one, two = Nursery(capacity=EngineCapacity(kv_tokens=1000)), Nursery(capacity=EngineCapacity(sequences=4))
    async with pool(one, two) as controller:
        assert controller.capacities == [EngineCapacity(kv_tokens=1000), EngineCapacity(sequences=4)]
        one.stillborn = 99
        one.engines[0].dead.set()
        await until(lambda: len(controller._pool.running) == 1)
        assert controller.capacities == [EngineCapacity(kv_tokens=1000), EngineCapacity(sequences=4)]


async def test_a_group_goes_to_one_engine_and_spreads_before_it_is_overloaded() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two) as controller:
        await asyncio.gather(*start(controller, *(ask(f"g/{m}/0", affinity="g") for m in range(3))))
        asked = [len(nursery.engines[0].requests) for nursery in (one, two)]
        assert asked == [3, 0]
        await asyncio.gather(*start(controller, *(ask(f"h/{m}/0", affinity="h") for m in range(8))))
    assert min(len(nursery.engines[0].requests) for nursery in (one, two)) >= 3


async def test_a_session_stays_with_its_engine() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two) as controller:
        tasks = start(controller, *(ask(f"task/3/{i}/0", 400) for i in range(3)))
        await asyncio.sleep(0.01)
        homes = {r.id.rpartition("/")[0]: n for n in (one, two) for r in n.engines[0].requests}
        for session, home in homes.items():
            await controller.generate(ask(f"{session}/1", 1))
            assert home.engines[0].requests[-1].id == f"{session}/1"
        for task in tasks:
            task.cancel()


async def test_all_engines_load_and_one_that_is_given_up_does_not_stop_the_others() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two, max_restarts=0) as controller:
        await controller.load(2, FILE)
        assert [n.engines[0].version for n in (one, two)] == [2, 2]
        one.engines[0].dead.set()
        assert whole(await controller.generate(ask()))
        two.engines[0].dead.set()
        with pytest.raises(BudgetError, match="says goodbye"):
            await controller.generate(ask())
