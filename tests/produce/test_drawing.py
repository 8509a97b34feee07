"""Groups are drawn several at a time. Whatever interrupts that, each has an owner, and none is drawn for no slot."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
from async_house import async_house, producing
from house import House

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.ports import GroupRow
from loopwright.types import GroupStatus, PauseMode, Rollout


class OneByOne(MemoryStorage):
    """Everything is stored at once; that a group was drawn is told one group after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Semaphore(0)
        self.draws = 0

    async def draw(self, *args: Any) -> Any:
        self.draws += 1
        drawn = await super().draw(*args)
        await self.told.acquire()
        return drawn


class Late(MemoryStorage):
    """Stores some members and does not tell, until somebody says so."""

    def __init__(self, untold: Collection[int]) -> None:
        super().__init__()
        self.stored, self.told = asyncio.Event(), asyncio.Event()
        self.untold = untold

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        await super().put(row, rollout)
        if rollout.key.member in self.untold:
            self.stored.set()
            await self.told.wait()


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("told", range(4))
async def test_a_stop_while_groups_are_drawn_leaves_none_without_an_owner(told: int) -> None:
    storage = OneByOne()
    house = House(storage=storage, groups=4)
    producer = house.producer()
    making = asyncio.create_task(producer.produce_batch(1, 0))
    for _ in range(told):
        storage.told.release()
    await some_turns()
    assert storage.draws == 4
    making.cancel()
    for _ in range(100):
        storage.told.release()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert await house.counts() == {GroupStatus.ABORTED: 4}
    async with asyncio.timeout(5):
        batch = await producer.produce_batch(1, 0)
    assert sorted(group.draw for group in batch.groups) == [0, 1, 2, 3]


@pytest.mark.parametrize("untold", [{1}, {0, 1, 2, 3}])
async def test_a_member_that_was_stored_untold_is_trained_with_its_group(untold: set[int]) -> None:
    storage = Late(untold)
    producer = House(storage=storage, groups=1, members=4).producer()
    making = asyncio.create_task(producer.produce_batch(1, 0))
    await asyncio.wait_for(storage.stored.wait(), 5)
    await some_turns()
    making.cancel()
    await some_turns()
    storage.told.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    async with asyncio.timeout(5):
        batch = await producer.produce_batch(1, 0)
    assert [[rollout.key.member for rollout in group.rollouts] for group in batch.groups] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("turns", range(60))
async def test_a_batch_of_a_caller_that_was_cancelled_is_handed_out_again_until_it_is_consumed(turns: int) -> None:
    house = House(groups=2)
    producer = house.producer()
    making = asyncio.create_task(producer.produce_batch(1, 0))
    for _ in range(turns):
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait({making})
    first, again = await producer.produce_batch(1, 0), await producer.produce_batch(1, 0)
    assert first is again
    assert sorted(group.draw for group in first.groups) == [0, 1]
    await producer.consume(first.groups, 1)
    assert sorted(group.draw for group in (await producer.produce_batch(2, 1)).groups) == [2, 3]


async def test_a_weight_update_while_groups_are_drawn_starts_no_group_without_a_slot() -> None:
    storage = OneByOne()
    house = async_house(staleness=20, groups=8, members=2, concurrency=8, storage=storage)
    manager = house.producer()
    async with producing(manager):
        try:
            await some_turns()
            assert storage.draws == 4
            await manager.pause(PauseMode.KEEP)
            await manager.continue_(0)
            for _ in range(4):
                storage.told.release()
            await some_turns()
            assert storage.draws == 4
        finally:
            for _ in range(1000):
                storage.told.release()
