"""Scenarios of production, by name: what becomes of rollouts under way when the weights change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from async_house import async_house, now, producing
from house import task_set

from loopwright.engines.controller import RolloutController
from loopwright.engines.worker import embedded
from loopwright.ports import Policy
from loopwright.produce import ManagerState
from loopwright.testing import ScriptedEngine, run_virtually
from loopwright.types import GroupStatus, Message, PauseMode, StopReason, Task


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
