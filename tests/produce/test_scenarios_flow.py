"""Scenarios of production, by name: taking, several task sets, and how a run ends that cannot go on."""

from __future__ import annotations

import asyncio

import pytest
from async_house import Learning, async_house, by_key, now, producing
from house import House, RaisesOn, echo, task_set

from loopwright.errors import BudgetError, ChainError, RunError, StalledError
from loopwright.judgers import IntegerAnswer, MemberJudger
from loopwright.testing import FlakyJudger, ScriptedEngine, run_virtually
from loopwright.types import Episode, GroupStatus, PauseMode, Scored, Stale, Task


def test_the_cases_of_take() -> None:
    async def main() -> None:
        house = async_house(staleness=0, groups=2, members=1)
        manager = house.producer()
        with pytest.raises(StalledError, match="production is updating with weights 0"):
            await manager.take(1)
        async with producing(manager):
            with pytest.raises(RunError, match="step 1 is next"):
                await manager.take(2)
            first = await manager.take(1)
            assert len(first.groups) == 2, "not ready, but in flight: it is waited for"
            assert now() == pytest.approx(1.0)
            assert (await manager.take(2)).is_empty, "version 0 may not feed step 2, and newer weights exist"
            assert (await manager.take(2)).is_empty, "asking again changes nothing"
            await manager.pause(PauseMode.ABORT)
            assert (await manager.take(2)).is_empty
            await house.engine.load(1)
            await manager.continue_(1)
            await asyncio.sleep(2)
            await manager.pause(PauseMode.ABORT)
            assert len((await manager.take(2)).groups) == 2, "a ready batch is handed out in any state"
            await manager.continue_(0)
            assert (await manager.take(3)).is_empty, "weights 0 may not feed step 3"

    async def closed() -> None:
        """No newer weights exist, and none of these may feed the step: that is an error with all counters."""
        house = async_house(staleness=0, groups=2, members=1, more={"last_step": 1})
        manager = await house.resumed(step=1)
        async with producing(manager, version=1):
            with pytest.raises(StalledError) as caught:
                await manager.take(2)
        for words in ("step 2 lacks", "0 pending", "0 completed", "no group may start", "0 of 100 slots"):
            assert words in caught.value.message

    async def ended() -> None:
        house = async_house(staleness=0, groups=2, members=1)
        manager = house.producer()
        async with producing(manager):
            pass
        with pytest.raises(StalledError, match="production is finished"):
            await manager.take(1)

    for case in (main, closed, ended):
        run_virtually(case())


def test_a_producer_that_crashes_ends_whoever_waits_in_take_at_once() -> None:
    class Bug(MemberJudger):
        name = "bug"

        async def judge(self, task: Task, episode: Episode) -> Scored:
            raise ChainError("a bug of ours", remedy="mend it")

    async def main() -> None:
        house = async_house(groups=2, members=1, task_sets=[task_set(judger=Bug())])
        manager = house.producer()
        loop = asyncio.create_task(manager.produce_loop())
        await manager.continue_(0)
        with pytest.raises(ChainError, match="a bug of ours"):
            await manager.take(1)
        assert now() == pytest.approx(1.0)
        with pytest.raises(ChainError):
            await loop
        with pytest.raises(ChainError):
            await manager.pause(PauseMode.ABORT)

    run_virtually(main())


def test_sync_interval_4_is_honoured_by_a_fast_producer() -> None:
    async def main() -> None:
        house = async_house(staleness=0, sync_interval=4, groups=2, members=1, seconds=lambda _: 0.01)
        manager = house.producer()
        learning = Learning(house, manager, sync_interval=4)
        await learning.run(12)
        assert learning.syncs == [4, 8, 12]
        assert learning.empty == []
        for step, batch in enumerate(learning.batches, 1):
            assert {group.oldest_version for group in batch.groups} == {(step - 1) // 4 * 4}
        assert max(batch.metrics["groups/left_completed"] for batch in learning.batches) == 6

    run_virtually(main())


def test_no_task_set_pauses_before_all_are_done() -> None:
    """While the slow set is at work on its share, the fast one makes groups for later steps."""

    async def main() -> None:
        sets = [task_set("fast", resumable=True), task_set("slow", resumable=True)]
        seconds = by_key({"fast": 1.0, "slow": 10.0})
        house = async_house(staleness=2, groups=2, members=1, concurrency=3, task_sets=sets, seconds=seconds)
        manager = house.producer()
        async with producing(manager):
            batch = await manager.take(1)
            assert sorted(group.task_set for group in batch.groups) == ["fast", "slow"]
            assert now() == pytest.approx(10.0)
            assert batch.metrics["groups/left_completed/fast"] == 2.0, "all that its horizon allows"
        assert batch.metrics["groups/trained/slow"] == batch.metrics["groups/trained/fast"] == 1.0
        assert batch.metrics["time/group/fast"] == batch.metrics["time/group_p50"] == pytest.approx(1.0)

    run_virtually(main())


def test_one_judger_that_raises() -> None:
    """The groups of the other set, and the other groups of its own, are trained as if nothing had happened."""

    async def main() -> None:
        flaky = FlakyJudger(IntegerAnswer("flaky"), {0, 3})
        sets = [task_set("a", judger=flaky, resumable=True), task_set("b", resumable=True)]
        house = async_house(groups=4, members=1, task_sets=sets)
        manager = house.producer()
        learning = Learning(house, manager)
        await learning.run(3)
        assert all(len(batch.groups) == 4 for batch in learning.batches)
        assert all(reward == 1.0 for batch in learning.batches for g in batch.groups for reward in g.rewards)
        assert sum(batch.metrics["failures/judge/a"] for batch in learning.batches) == 2.0
        assert sum(batch.metrics["failures/judge/b"] for batch in learning.batches) == 0.0
        assert (await house.counts("a"))[GroupStatus.FAILED] == 2

    run_virtually(main())


def test_a_task_set_that_always_fails_ends_the_run_with_its_budget_error() -> None:
    async def main() -> None:
        broken = task_set("broken", loop=RaisesOn(*(f"t{n}" for n in range(1000))))
        sets = [task_set("fine", resumable=True), broken]
        house = async_house(groups=4, members=2, task_sets=sets, budget=5, max_attempts=2)
        manager = house.producer()
        with pytest.raises(BudgetError, match=r"'broken'.*5 groups in a row"):
            await Learning(house, manager).run(5)
        counts = await house.counts("broken")
        assert counts[GroupStatus.FAILED] <= 8, "those in flight are all that may fail beyond the budget"
        assert GroupStatus.PENDING not in {**counts, **await house.counts("fine")}

    run_virtually(main())


def test_failures_that_end_early_are_no_row_of_failures() -> None:
    """Bad tasks fail at once; the good ones between them take their time, and count where they stand."""

    async def main() -> None:
        odd = RaisesOn(*(f"t{n}" for n in range(1, 1000, 2)))
        house = async_house(
            staleness=1, groups=8, members=1, task_sets=[task_set(loop=odd, resumable=True)], budget=3, max_attempts=1
        )
        learning = Learning(house, house.producer())
        await learning.run(4)
        assert all(len(batch.groups) == 8 for batch in learning.batches)

    run_virtually(main())


def test_metrics_tell_pauses_idleness_sizes_and_leftovers() -> None:
    async def main() -> None:
        house = async_house(staleness=0, groups=2, members=2, concurrency=4)
        manager = house.producer()
        async with producing(manager):
            await manager.take(1)
            await manager.pause(PauseMode.ABORT)
            await asyncio.sleep(3)
            await house.engine.load(1)
            await manager.continue_(1)
            metrics = (await manager.take(2)).metrics
        assert metrics["time/paused"] == pytest.approx(3.0)
        assert metrics["slots/idle"] == pytest.approx(0.75), "one of four seconds"
        assert metrics["groups/size"] == metrics["groups/size_min"] == 2.0
        left = ("pending", "aborted", "expired", "completed")
        assert [metrics[f"groups/left_{status}"] for status in left] == [0.0] * 4
        assert metrics["time/group_p99"] == pytest.approx(1.0)

    run_virtually(main())


def test_describe_says_who_waits_on_whom() -> None:
    async def main() -> None:
        house = async_house(staleness=1, groups=2, members=2, concurrency=3, stale=Stale.WAIT)
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(0.75)
            words = manager.describe()
        assert "production is normal with weights 0; step 1 is taken next" in words
        assert "task set 'math': 2 pending" in words
        assert "step 1 lacks 2" in words
        assert "4 may be by these weights" in words
        assert "3 of 3 slots are in use" in words
        assert "math/000000/00/0 for 0.8 s" in words

    run_virtually(main())


def test_nothing_outlives_a_shutdown() -> None:
    async def main() -> None:
        house = House(engine=ScriptedEngine(echo, seconds=lambda _: 1.0), more={})
        manager = house.producer()
        loop = asyncio.create_task(manager.produce_loop())
        await manager.continue_(0)
        await asyncio.sleep(0.5)
        await manager.shutdown()
        await loop
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
        assert await house.counts() == {GroupStatus.ABORTED: 3}, "cancelled work does not vanish"
        with pytest.raises(RunError, match="it has ended"):
            await manager.continue_(1)

    run_virtually(main())
