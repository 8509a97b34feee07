"""A task set with a strategy of its own: made by the newest weights alone, among others that are made ahead."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from async_house import Learning, async_house, by_key, producing, take_turns
from house import House, task_set

from loopwright.core.staleness import staleness
from loopwright.produce import Batch
from loopwright.testing import run_virtually
from loopwright.types import PauseMode, ProduceKind


def ages(batches: list[Batch], name: str) -> list[int]:
    """How many steps behind the tokens of a task set were, over all steps."""
    return [
        staleness(group.oldest_version or 0, step)
        for step, batch in enumerate(batches, start=1)
        for group in batch.groups
        if group.task_set == name
    ]


def two_sets(**more: object) -> House:
    sets = [task_set("far", resumable=True), task_set("near", resumable=True, produce=ProduceKind.SYNC)]
    seconds = by_key({"far": 4.0, "near": 0.5})
    return async_house(staleness=2, groups=4, members=2, seconds=seconds, task_sets=sets, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_flight", PauseMode)
@pytest.mark.parametrize("sync_interval", [1, 2])
def test_beside_a_trainer_it_is_made_by_the_newest_weights(in_flight: PauseMode, sync_interval: int) -> None:
    async def main() -> None:
        house = two_sets(sync_interval=sync_interval, more={"sync_interval": sync_interval})
        learning = Learning(house, house.producer(), sync_interval=sync_interval, in_flight=in_flight)
        await learning.run(12)
        assert [len(batch.groups) for batch in learning.batches] == [4] * 12
        assert max(ages(learning.batches, "near")) == sync_interval - 1
        assert max(ages(learning.batches, "far")) > sync_interval - 1, "the others are made ahead"

    run_virtually(main())


def test_newer_weights_are_wanted_for_its_sake_alone() -> None:
    """The others have made all up to the last step, and it may go no further than the next sync."""

    async def main() -> None:
        house = two_sets(sync_interval=2, concurrency=100, more={"sync_interval": 2, "last_step": 6})
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(10)
            assert manager.next_draws == {"far": 12, "near": 4}
            assert manager.wants_weights

    run_virtually(main())


def test_in_turns_it_is_not_oversampled() -> None:
    async def main() -> None:
        house = two_sets(more={"over_sample": 1.0, "in_flight": PauseMode.ABORT})
        manager = house.producer()
        batches = await take_turns(house, manager, 6)
        assert [len(batch.groups) for batch in batches] == [4] * 6
        assert ages(batches, "near") == [0] * 12
        assert manager.next_draws["near"] == 12, "what the steps needed, and no more"
        assert manager.next_draws["far"] > 12

    run_virtually(main())


def test_in_a_sync_run_all_are() -> None:
    """A session that only samples makes a sync run of any config, and always with the same weights."""

    async def main() -> None:
        house = House(task_sets=[task_set("far", produce=ProduceKind.ASYNC), task_set("near")])
        manager = house.producer()
        drawn = []
        for number in (1, 2, 3):
            batch = await manager.produce_batch(number, 0, size=4)
            await manager.consume(batch.groups, number)
            drawn.append(sum(manager.next_draws.values()))
        assert [later - earlier for earlier, later in pairwise([0, *drawn])] == [4] * 3

    run_virtually(main())
