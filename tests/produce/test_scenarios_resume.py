"""Scenarios of production, by name: saving, and going on from what was saved."""

from __future__ import annotations

import asyncio

import pytest
from async_house import Learning, async_house, now, producing

from loopwright.errors import RunError
from loopwright.produce import AgentLoopManager, ManagerState
from loopwright.testing import run_virtually
from loopwright.types import GroupStatus, PauseMode


def test_save_while_pending_drains_or_refuses() -> None:
    async def main(in_flight: PauseMode) -> AgentLoopManager:
        house = async_house(staleness=1, groups=2, members=1, more={"in_flight": in_flight})
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(0.5)
            if in_flight is PauseMode.DRAIN:
                assert await manager.save() == {"next_draws": {"math": 4}}
                assert now() == pytest.approx(1.0), "it has waited for the groups in flight"
                assert manager.state is ManagerState.NORMAL
                await manager.take(1)
            else:
                with pytest.raises(RunError, match=f"in_flight: {in_flight}"):
                    await manager.save()
                await manager.pause(in_flight)
                assert (await manager.save())["next_draws"] == {"math": 4}, "paused, it has come to rest"
        return manager

    for in_flight in PauseMode:
        run_virtually(main(in_flight))


def test_resume_starts_paused() -> None:
    async def main() -> None:
        house = async_house(staleness=1, groups=2, members=1)
        first = house.producer()
        async with producing(first):
            await asyncio.sleep(1.0)
            await first.take(1)
            await asyncio.sleep(0.1)
        again = async_house(staleness=1, groups=2, members=1, storage=house.storage)
        manager = await again.resumed(step=0)
        assert manager.state is ManagerState.UPDATING
        loop = asyncio.create_task(manager.produce_loop())
        await asyncio.sleep(100)
        assert again.engine.requests == [], "nothing starts before it is told with which weights"
        await manager.continue_(0)
        assert {group.draw for group in (await manager.take(1)).groups} == {0, 1}, "what was completed comes first"
        await manager.shutdown()
        await loop

    run_virtually(main())


def test_resume_at_c_rolls_back_versions_above_c() -> None:
    async def main() -> None:
        house = async_house(staleness=1, groups=2, members=1)
        learning = Learning(house, house.producer(), seconds=0.5)
        await learning.run(4)
        again = async_house(staleness=1, groups=2, members=1, storage=house.storage)
        manager = await again.resumed(step=2)
        counts = await again.counts()
        assert counts[GroupStatus.CONSUMED] == 4, "steps 3 and 4 never happened"
        rolled_back = counts[GroupStatus.ROLLED_BACK]
        assert rolled_back > 0
        continued = Learning(again, manager, version=2)
        await again.engine.load(2)
        await continued.run(4)
        trained = [(group.task_set, group.draw) for batch in continued.batches for group in batch.groups]
        before = [(group.task_set, group.draw) for batch in learning.batches[:2] for group in batch.groups]
        assert len(set(trained + before)) == len(trained + before) == 12, "none is trained twice"
        assert sorted(draw for _, draw in trained + before) == list(range(12)), "and none is skipped"

    run_virtually(main())
