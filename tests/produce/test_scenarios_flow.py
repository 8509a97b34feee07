"""Scenarios of production, by name: pausing, taking, saving, resuming, and how a run ends that cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from async_house import Learning, async_house, by_key
from house import House, RaisesOn, echo, task_set

from loopwright.engines.controller import RolloutController
from loopwright.engines.worker import embedded
from loopwright.errors import BudgetError, ChainError, RunError, StalledError
from loopwright.judgers import IntegerAnswer
from loopwright.ports import Policy
from loopwright.produce import AgentLoopManager, ManagerState
from loopwright.testing import FlakyJudger, ScriptedEngine, run_virtually
from loopwright.types import Episode, GroupStatus, Message, PauseMode, Scored, Stale, StopReason, Task


@asynccontextmanager
async def producing(manager: AgentLoopManager, version: int = 0) -> AsyncIterator[None]:
    """A manager that produces."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.produce_loop())
        await manager.continue_(version)
        yield
        await manager.shutdown()


def now() -> float:
    return asyncio.get_running_loop().time()


def test_partial_rollout_keeps_old_tokens_and_versions() -> None:
    async def main() -> None:
        house = async_house(staleness=4, groups=1, members=2, engine=ScriptedEngine(["12345"], seconds=lambda _: 6.0))
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(3.5)
            await manager.pause(PauseMode.ABORT)
            await asyncio.sleep(0.1)
            assert await house.counts() == {GroupStatus.ABORTED: 5}
            partial = await house.storage.rollouts_of("math", 0)
            assert [rollout.is_partial for rollout in partial] == [True, True]
            await house.engine.load(3)
            await manager.continue_(3)
            batch = await manager.take(1)
        (group,) = batch.groups
        for before, after in zip(partial, group.rollouts, strict=True):
            assert after.key == before.key, "it is the same attempt"
            (old,), (new,) = before.episode.chains, after.episode.chains  # type: ignore[union-attr]
            length = len(old.ids)
            for stream in ("ids", "mask", "logprobs", "versions"):
                assert list(getattr(new, stream)[:length]) == list(getattr(old, stream))
            assert [v for v, m in zip(new.versions, new.mask, strict=True) if m] == [0, 0, 0, 3, 3, 3]
        assert group.oldest_version == 0
        resumed = [request for request in house.engine.requests if request.sampled_before]
        assert {request.sampled_before for request in resumed[:2]} == {3}

    run_virtually(main())


def test_an_abort_turns_away_members_that_wait_for_a_slot() -> None:
    async def main() -> None:
        house = async_house(staleness=0, groups=1, members=3, concurrency=1, seconds=lambda _: 10.0)
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(15)
            await manager.pause(PauseMode.ABORT)
            await asyncio.sleep(0.1)
            assert await house.counts() == {GroupStatus.ABORTED: 1}, "it need not wait for those who never started"
            stored = await house.storage.rollouts_of("math", 0)
            assert [rollout.is_partial for rollout in stored] == [False, True]
            await manager.continue_(0)
            (group,) = (await manager.take(1)).groups
        assert [rollout.key.attempt for rollout in group.rollouts] == [0, 0, 0]
        asked = [request.id.split("/")[2] for request in house.engine.requests]
        assert asked == ["00", "01", "01", "02"], "what was made is not made again"

    run_virtually(main())


def test_non_resumable_loop_across_a_sync_sees_one_slower_call() -> None:
    class Timed:
        """Writes down how long each of its two calls took."""

        def __init__(self) -> None:
            self.calls: list[float] = []

        async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
            messages = list(task.messages)
            for _ in range(2):
                asked = now()
                messages.append((await policy.reply(messages)).message)
                self.calls.append(now() - asked)
                messages.append({"role": "user", "content": "again"})
            return messages[:-1]

    async def main() -> None:
        agent = Timed()
        engine = ScriptedEngine(["12345"], seconds=lambda _: 6.0)
        async with RolloutController.open([embedded(engine)]) as pool:
            house = async_house(
                staleness=0, groups=1, members=1, engine=engine, pool=pool, task_sets=[task_set(loop=agent)]
            )
            manager = house.producer()
            async with producing(manager):
                await asyncio.sleep(3.5)
                await manager.pause(PauseMode.ABORT)
                assert await house.counts() == {GroupStatus.PENDING: 1}, "the agent knows nothing of it"
                await asyncio.sleep(10)
                await pool.load(1)
                await manager.continue_(1)
                (group,) = (await manager.take(1)).groups
        assert agent.calls[0] == pytest.approx(16.5), "half of a token was lost, and ten seconds of pause"
        assert agent.calls[1:] == pytest.approx([6.0] * len(agent.calls[1:]))
        (rollout,) = group.rollouts
        assert rollout.key.attempt == 0
        versions = [v for chain in rollout.episode.chains for v in chain.versions if v >= 0]  # type: ignore[union-attr]
        assert versions == [0] * 3 + [1] * 9

    run_virtually(main())


@pytest.mark.parametrize(
    ("mode", "own_seconds"), [(PauseMode.ABORT, 0.0), (PauseMode.KEEP, 0.0), (PauseMode.ABORT, 9.0)]
)
def test_an_agent_is_not_charged_for_a_pause(mode: PauseMode, own_seconds: float) -> None:
    """It has ten seconds, and is held for a hundred in its second call. What it takes itself still counts."""

    class Thoughtful:
        async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
            messages = [*task.messages, (await policy.reply(task.messages)).message]
            messages.append((await policy.reply([*messages, {"role": "user", "content": "sure?"}])).message)
            await asyncio.sleep(own_seconds)
            return messages

    async def main() -> None:
        engine = ScriptedEngine(["12"], seconds=lambda _: 3.0)
        async with RolloutController.open([embedded(engine)]) as pool:
            house = async_house(
                staleness=0,
                groups=1,
                members=1,
                engine=engine,
                pool=pool,
                agent_seconds=10.0,
                task_sets=[task_set(loop=Thoughtful())],
            )
            manager = house.producer()
            async with producing(manager):
                await asyncio.sleep(4.5)
                await manager.pause(mode)
                await asyncio.sleep(100)
                await manager.continue_(0)
                (group,) = (await manager.take(1)).groups
                assert now() < 116, "and no more than that"
        (rollout,) = group.rollouts
        assert rollout.key.attempt == 0
        stop = StopReason.BUDGET if own_seconds else StopReason.DONE
        assert rollout.episode is not None
        assert rollout.episode.stop is stop

    run_virtually(main())


def test_drain_lets_groups_end_before_the_engine_stops() -> None:
    async def main() -> None:
        house = async_house(staleness=0, groups=2, members=3, concurrency=2)
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(0.5)
            await manager.pause(PauseMode.DRAIN)
            assert now() == pytest.approx(2.0), "a group of three, two at a time"
            assert await house.counts() == {GroupStatus.COMPLETED: 1}
            assert manager.state is ManagerState.UPDATING
            await asyncio.sleep(5)
            assert manager.next_draws == {"math": 1}, "nothing starts while it is paused"
            await manager.continue_(0)
            await manager.take(1)

    run_virtually(main())


def test_keep_goes_on_under_new_weights() -> None:
    async def main() -> None:
        engine = ScriptedEngine(["12345"], seconds=lambda _: 6.0)
        house = async_house(staleness=4, groups=1, members=1, engine=engine)
        manager = house.producer()
        async with producing(manager):
            await asyncio.sleep(3.5)
            await manager.pause(PauseMode.KEEP)
            await house.engine.load(2)
            await manager.continue_(2)
            (group,) = (await manager.take(1)).groups
        (chain,) = group.rollouts[0].episode.chains  # type: ignore[union-attr]
        assert [int(v) for v in chain.versions if v >= 0] == [0, 0, 0, 2, 2, 2]
        assert len([r for r in engine.requests if r.id.startswith("math/000000")]) == 1

    run_virtually(main())


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
    class Bug:
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
