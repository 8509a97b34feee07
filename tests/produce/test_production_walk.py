"""Production under random orders of finish, fail, filter, abort, pause, sync, save, stop, kill and resume, in virtual
time: beside a trainer, and in turns with it.

At every step: conservation (R3), no token trained past its horizon, each group claimed and trained once (D1); at the
end: nothing was dropped for being slow (R5).
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import pytest
from async_house import async_house
from house import House, KilledError, Mortal, task_set
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from walk_world import Doubtful, Moody, World, worlds

from loopwright.core.staleness import horizon, is_too_old
from loopwright.engines.controller import RolloutController
from loopwright.engines.worker import embedded
from loopwright.errors import BudgetError
from loopwright.produce import AgentLoopManager, Batch, NoSignal
from loopwright.testing import VirtualTimeLoop
from loopwright.types import Group, GroupStatus, PauseMode, ProduceKind, Stale

T = TypeVar("T")

OVER = (GroupStatus.CONSUMED, GroupStatus.FILTERED, GroupStatus.FAILED)
PATIENCE_SECONDS = 10_000.0


class Production(RuleBasedStateMachine):
    """A trainer that does what it likes, as long as it keeps to the manager's contract."""

    takes_turns = False

    @initialize(
        world=worlds,
        staleness=st.integers(0, 3),
        sync_interval=st.integers(1, 3),
        stale=st.sampled_from(Stale),
        in_flight=st.sampled_from(PauseMode),
        tail_batch=st.sampled_from(["immediate", 1, 3]),
        two_sets=st.booleans(),
        resumable=st.booleans(),
        concurrency=st.integers(1, 8),
        filter_budget=st.sampled_from([2, 5, 1000]),
        last_step=st.sampled_from([None, 4, 9]),
        over_sample=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
        kind=st.sampled_from(ProduceKind),
    )
    def begin(
        self,
        world: World,
        staleness: int,
        sync_interval: int,
        stale: Stale,
        in_flight: PauseMode,
        tail_batch: object,
        two_sets: bool,
        resumable: bool,
        concurrency: int,
        filter_budget: int,
        last_step: int | None,
        over_sample: float,
        kind: ProduceKind,
    ) -> None:
        self.loop = VirtualTimeLoop()
        self.world, self.staleness, self.sync_interval = world, staleness, sync_interval
        self.stale, self.in_flight, self.last_step = stale, in_flight, last_step
        if self.takes_turns:
            # Nothing can be kept in flight, and the last step starts as many groups as the others.
            self.in_flight, self.last_step = PauseMode.DRAIN if in_flight is PauseMode.KEEP else in_flight, None
        self.storage = Mortal(turns=8)
        moody = task_set("moody", loop=Moody(world), judger=Doubtful(world), resumable=True, weight=2.0, produce=kind)
        plain = task_set("plain", filter=NoSignal(), resumable=resumable)
        self.house: House = async_house(
            staleness=staleness,
            sync_interval=sync_interval,
            stale=stale,
            engine=world.engine(0),
            pool=None,
            storage=self.storage,
            task_sets=[moody, plain] if two_sets else [plain],
            groups=3,
            members=2,
            concurrency=concurrency,
            budget=1000,
            filter_budget=filter_budget,
            more={
                "in_flight": self.in_flight,
                "tail_batch": tail_batch,
                "last_step": self.last_step,
                "over_sample": over_sample,
                "sync_interval": 1 if self.takes_turns else sync_interval,
            },
        )
        self.names = [one.name for one in self.house.task_sets]
        self.trained: dict[tuple[str, int], int] = {}
        self.checkpoint = 0
        self._start_engine(0)
        self._open(self.house.producer(), 0)

    # What a trainer does.

    @rule(seconds=st.sampled_from([0.05, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    @precondition(lambda self: not self.paused and not self.is_over)
    @rule(steps=st.integers(1, 4))
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._train_once()

    @precondition(lambda self: not self.paused)
    @rule()
    def pause(self) -> None:
        self._run(self.manager.pause(self.in_flight))
        self.paused = True

    @precondition(lambda self: self.paused)
    @rule(save=st.booleans())
    def sync(self, save: bool) -> None:
        self._run(self._publish(save))

    @precondition(lambda self: self.version > self.checkpoint)
    @rule()
    def die(self) -> None:
        self.storage.writes_left = 0
        self._resume()

    @rule(writes=st.integers(0, 6))
    def stop(self, writes: int) -> None:
        """In the middle of something: the last write is done, and nobody knows it yet."""
        self._run(self._stop(writes))
        self._resume()

    # What always holds.

    @invariant()
    def every_group_is_in_one_place(self) -> None:
        """R3: what was drawn is being made, waits, is trained or over; memory and ledger agree on it."""
        self._run(_settle_down())
        buffer, table = self.manager._buffer, self._run(self.storage.counts())
        for name in self.names:
            counts = table.get(name, {})
            consumed = counts.get(GroupStatus.CONSUMED, 0)
            assert consumed == sum(task_set == name for task_set, _ in self.trained)
            for status in GroupStatus:
                assert buffer.count(name, status) == counts.get(status, 0)
            producer = self.manager._producers[name]
            current = sum(counts.values()) - counts.get(GroupStatus.ROLLED_BACK, 0) + len(producer._redraw)
            assert current == producer.next_draw, "no draw was skipped, lost or doubled"
        pending = sum(buffer.count(name, GroupStatus.PENDING) for name in self.names)
        assert pending == len(self.manager._scheduler._in_flight), "somebody works on every pending group"

    @invariant()
    def every_attempt_is_claimed_once(self) -> None:
        """An episode whose judge has failed is judged again when its group goes on."""
        told = Counter(rollout.key for rollout in self.house.seen if not rollout.awaits_judge)
        assert not told or max(told.values()) == 1

    @invariant()
    def no_more_agents_run_than_there_are_slots(self) -> None:
        assert self.house.engine.most_live <= self.house.concurrency

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            try:
                if sys.exc_info()[0] is None:
                    self._check_the_end()
            finally:
                self.loop.run_until_complete(_end_all())
                self.loop.close()

    def _check_the_end(self) -> None:
        """R5: whatever was drawn by now is over some steps later, however slow it is."""
        if self.paused:
            self._run(self._publish(save=False))
        most = 12 + sum(self.manager.next_draws.values())
        drawn = [(name, draw) for name, count in self.manager.next_draws.items() for draw in range(count)]
        for _ in range(most):
            drawn = [group for group in drawn if self.storage._rounds(*group)[-1].row.status not in OVER]
            if not drawn or self.is_over:
                break
            self._run(asyncio.sleep(2 * self.world.slowest))
            self._train_once()
            if not self.is_over:
                self._run(self._sync())
        # What was rolled back is as good as never drawn: when there is no step for it, it need not be drawn again.
        over = (*OVER, GroupStatus.ROLLED_BACK) if self.is_over else OVER
        left = [group for group in drawn if self.storage._rounds(*group)[-1].row.status not in over]
        assert len(left) <= self._may_wait_for_company, left
        if self.stale is Stale.WAIT:
            assert self.manager._buffer.masked_tokens == 0, "nothing is ever stale"
        self._run(self.manager.shutdown())
        self._run(self.engines.aclose())
        self._run(_settle_down())
        assert not asyncio.all_tasks(self.loop), "nothing outlives production"

    @property
    def _may_wait_for_company(self) -> int:
        """With a tail batch of N, fewer than N expired groups of a task set wait for others."""
        tail_batch = self.house.more["tail_batch"]
        return (tail_batch - 1) * len(self.names) if isinstance(tail_batch, int) else 0

    # How it is done.

    @property
    def is_over(self) -> bool:
        return self.version == self.last_step

    def _train_once(self) -> None:
        """A step, if there is one. When the filter leaves nothing to train on, the run saves what it has and ends."""
        if self.is_over:
            return
        try:
            self._run(self._train())
        except BudgetError:
            self._run(self.manager.shutdown())
            self.checkpoint = self.version
            self._resume()

    def _start_engine(self, version: int) -> None:
        self.house.engine = self.world.engine(version)
        self.engines = AsyncExitStack()
        pool = RolloutController.open([embedded(self.house.engine)])
        self.house.pool = self._run(self.engines.enter_async_context(pool))

    async def _stop(self, writes: int) -> None:
        await self._after(writes)
        await self.manager.shutdown()

    async def _after(self, writes: int) -> None:
        """Wait for so many writes, or until it is clear that they do not come."""
        for _ in range(writes):
            self.storage.wrote.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.storage.wrote.wait(), self.world.slowest + 2.0)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_SECONDS))
        except TimeoutError:
            raise AssertionError(f"nothing moves\n{self.loop.run_until_complete(self._describe())}") from None

    async def _describe(self) -> str:
        return self.manager.describe()

    def _open(self, manager: AgentLoopManager, version: int) -> None:
        self.manager, self.version, self.paused = manager, version, False
        self.producing = self.loop.create_task(manager.produce_loop())
        self._run(manager.continue_(version))

    async def _train(self) -> None:
        step = self.version + 1
        while (batch := await self.manager.take(step)).is_empty:
            await self._sync()
        self._check_batch(batch, step)
        await self._consume(batch, step)

    def _check_batch(self, batch: Batch, step: int) -> None:
        for group in batch.groups:
            assert (group.task_set, group.draw) not in self.trained, "trained once"
            self._check_ages(group, step)

    async def _consume(self, batch: Batch, step: int) -> None:
        await self.manager.consume(batch.groups, step)
        self.trained |= {(group.task_set, group.draw): step for group in batch.groups}
        self.version = step

    def _check_ages(self, group: Group, step: int) -> None:
        for rollout in group.rollouts:
            assert not rollout.is_partial
            for chain in rollout.episode.chains:  # type: ignore[union-attr]
                for version, mask in zip(chain.versions, chain.mask, strict=True):
                    assert not mask or version < step
                    assert not mask or not is_too_old(int(version), step, horizon(self.staleness, self.sync_interval))

    async def _sync(self) -> None:
        await self.manager.pause(self.in_flight)
        await self._publish(save=False)

    async def _publish(self, save: bool) -> None:
        assert self.house.pool is not None
        await self.house.pool.load(self.version)
        if save:
            await self.manager.save()
            self.checkpoint = self.version
        await self.manager.continue_(self.version)
        self.paused = False

    def _resume(self) -> None:
        """A new process: nothing is left but the storage and the checkpoint."""
        self.loop.run_until_complete(_end_all())
        self.storage.writes_left = None
        self._start_engine(self.checkpoint)
        self.house.seen.clear()
        self.trained = {group: step for group, step in self.trained.items() if step <= self.checkpoint}
        self._open(self._run(self.house.resumed(self.checkpoint)), self.checkpoint)


async def _settle_down() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    for ended in await asyncio.gather(*others, return_exceptions=True):
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError | KilledError):
            raise ended


class Colocated(Production):
    """The same in turns: a batch is made, then trained on. What was started beyond it is for the next one."""

    takes_turns = True
    pause = sync = None  # type: ignore[assignment]

    @rule()
    def save(self) -> None:
        self.checkpoint = self.version

    def _open(self, manager: AgentLoopManager, version: int) -> None:
        self.manager, self.version, self.paused = manager, version, False

    async def _train(self) -> None:
        step = self.version + 1
        batch = await self.manager.produce_batch(step, self.version)
        self._check_batch(batch, step)
        assert self.house.pool is not None
        await self.house.pool.pause(PauseMode.ABORT)
        await self.house.pool.load(step)
        await self.house.pool.resume()
        await self._consume(batch, step)

    async def _sync(self) -> None:
        """The engine has the learner's own weights."""

    async def _stop(self, writes: int) -> None:
        if not self.is_over:
            making = asyncio.create_task(self.manager.produce_batch(self.version + 1, self.version))
            await self._after(writes)
            making.cancel()
            await asyncio.wait({making})
        await self.manager.shutdown()


WALK = settings(max_examples=6, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestProduction = Production.TestCase
TestColocated = Colocated.TestCase
TestProduction.settings = TestColocated.settings = WALK


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestProductionForLong(Production.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(WALK, max_examples=100)


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestColocatedForLong(Colocated.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(WALK, max_examples=100)
