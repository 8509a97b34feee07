"""How production ends: what was being made is given back once (R3), and nobody can keep it from ending (R4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from async_house import Learning, async_house, by_key
from house import House, KilledError, Says, task_set

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.core.together import GRACE_SECONDS, to_its_end
from loopwright.errors import StalledError
from loopwright.ports import Policy
from loopwright.produce import AgentLoopManager
from loopwright.testing import ScriptedEngine, run_virtually
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import Failed, FailureCause, GroupStatus, Message, PauseMode, Stale, Task


class Lagging(MemoryStorage):
    """Storage that says a second later what it has marked: the write is done, and nobody knows yet."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[GroupStatus] = []

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, why: str | None = None) -> None:
        await super().mark(rows, status, why)
        self.marked += [status] * len(rows)
        await asyncio.sleep(1.0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("status", [GroupStatus.FILTERED, GroupStatus.FAILED, GroupStatus.COMPLETED])
def test_a_group_that_is_being_settled_when_production_ends_is_not_given_back(status: GroupStatus) -> None:
    broken = Failed(FailureCause.FILTER, "KeyError", "difficulty")
    verdicts = {GroupStatus.FILTERED: False, GroupStatus.FAILED: broken, GroupStatus.COMPLETED: True}
    says: Any = verdicts[status]

    async def main() -> None:
        storage = Lagging()
        sets = [task_set(filter=Says(says))]
        house = async_house(staleness=0, groups=2, members=1, storage=storage, task_sets=sets)
        manager = house.producer()
        producing = asyncio.create_task(manager.produce_loop())
        await manager.continue_(0)
        await until(lambda: bool(storage.marked))
        await manager.shutdown()
        await producing
        assert storage.marked == [status] * 2
        assert await house.counts() == {status: 2}
        assert manager._buffer.count("math", status) == 2, "and the buffer knows it"

    run_virtually(main())


def test_a_group_that_expires_as_it_is_completed_when_production_ends_is_not_given_back() -> None:
    async def main() -> None:
        storage = Lagging()
        house = async_house(
            staleness=1,
            groups=2,
            members=1,
            stale=Stale.RETRY,
            storage=storage,
            seconds=by_key({"math/000001": 30.0}),
        )
        manager = house.producer()
        learning = Learning(house, manager, in_flight=PauseMode.KEEP)
        running = asyncio.create_task(learning.run(1000))
        await until(lambda: GroupStatus.EXPIRED in storage.marked)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        counts = await house.counts()
        assert counts[GroupStatus.EXPIRED] == 1
        assert GroupStatus.PENDING not in counts
        assert manager._buffer.count("math", GroupStatus.EXPIRED) == 1, "and the buffer knows it"

    run_virtually(main())


def test_what_is_done_to_its_end_says_how_it_ended() -> None:
    async def work(log: list[str], error: Exception | None = None) -> str:
        await asyncio.sleep(1.0)
        log.append("done")
        if error is not None:
            raise error
        return "result"

    async def main() -> None:
        log: list[str] = []
        assert await to_its_end(work(log)) == "result"
        with pytest.raises(KilledError):
            await to_its_end(work(log, KilledError()))
        for error, ended in ((None, asyncio.CancelledError), (KilledError(), KilledError)):
            task = asyncio.create_task(to_its_end(work(log, error)))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(ended):
                await task
        assert log == ["done"] * 4

    run_virtually(main())


class Stubborn:
    """An agent that cannot be cancelled, until it is `released`."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue
        return (await policy.reply(task.messages)).message, *task.messages


def _stubborn(**changes: Any) -> tuple[Stubborn, House, AgentLoopManager]:
    agent = Stubborn()
    house = async_house(staleness=0, groups=1, members=1, task_sets=[task_set(loop=agent)], **changes)
    return agent, house, house.producer()


def test_an_agent_that_cannot_be_cancelled_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        agent, house, manager = _stubborn()
        producing = asyncio.create_task(manager.produce_loop())
        await manager.continue_(0)
        await asyncio.sleep(1.0)
        asked = asyncio.get_running_loop().time()
        await asyncio.wait_for(manager.shutdown(), 1000)
        assert asyncio.get_running_loop().time() - asked == pytest.approx(GRACE_SECONDS)
        await producing
        assert await house.counts() == {GroupStatus.ABORTED: 1}, "its group goes on in the next run"
        agent.released.set()
        await asyncio.sleep(10.0)
        assert await house.counts() == {GroupStatus.ABORTED: 1}, "whatever it does later"

    with caplog.at_level(logging.WARNING, "loopwright"):
        run_virtually(main())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "math/000000/00/0" in warning
    assert "30 s" in warning


@pytest.mark.parametrize("takes_turns", [False, True])
def test_a_run_that_stalls_over_such_an_agent_ends_with_the_watchdogs_error(takes_turns: bool) -> None:
    async def main() -> None:
        agent, house, manager = _stubborn()
        watchdog = Watchdog(
            stop=asyncio.Event(), seconds=60.0, progress=lambda: manager.moves, describe=manager.describe
        )
        producing = None
        if not takes_turns:
            producing = asyncio.create_task(manager.produce_loop())
            await manager.continue_(0)
        with pytest.raises(StalledError, match="math/000000/00/0"):
            await watchdog.wait_or_stop("a batch", manager.produce_batch(1, 0) if takes_turns else manager.take(1))
        await manager.shutdown()
        if producing is not None:
            await producing
        assert asyncio.get_running_loop().time() < 60.0 + 2 * GRACE_SECONDS + 10.0
        assert await house.counts() == {GroupStatus.ABORTED: 1}
        agent.released.set()
        await asyncio.sleep(10.0)

    run_virtually(main())


def test_a_colocated_batch_that_is_cancelled_ends_too() -> None:
    async def main() -> None:
        agent, house, manager = _stubborn()
        batch = asyncio.create_task(manager.produce_batch(1, 0))
        await asyncio.sleep(1.0)
        batch.cancel()
        await asyncio.wait({batch}, timeout=1000)
        assert batch.cancelled()
        assert await house.counts() == {GroupStatus.ABORTED: 1}
        agent.released.set()
        await asyncio.sleep(10.0)

    run_virtually(main())


def test_groups_are_given_back_once_by_whoever_makes_them() -> None:
    """`shutdown` waits for the loop, which gives back what it has started; without a loop it does so itself."""

    async def main() -> None:
        storage = Lagging()
        house = async_house(staleness=0, groups=3, members=1, storage=storage)
        manager = house.producer()
        producing = asyncio.create_task(manager.produce_loop())
        await manager.continue_(0)
        await asyncio.sleep(0.5)
        await manager.shutdown()
        assert producing.done()
        assert storage.marked == [GroupStatus.ABORTED] * 3

    run_virtually(main())


def test_a_shutdown_need_not_wait_for_groups_that_are_drained() -> None:
    async def main() -> None:
        house = async_house(staleness=0, groups=1, members=1, engine=ScriptedEngine(["1"], seconds=lambda _: 1e6))
        manager = house.producer()
        producing = asyncio.create_task(manager.produce_loop())
        await manager.continue_(0)
        await asyncio.sleep(0.5)
        pausing = asyncio.create_task(manager.pause(PauseMode.DRAIN))
        await asyncio.sleep(0.5)
        await asyncio.wait_for(manager.shutdown(), 10.0)
        await asyncio.gather(producing, pausing)

    run_virtually(main())
