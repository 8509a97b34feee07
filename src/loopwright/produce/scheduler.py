"""Starts groups, and counts those that have ended.

A group starts when its strategy says so; task sets take turns. The filler settles it in the buffer; the scheduler
claims it exactly once and counts it. Nothing here looks at more than one group at a time, so a group costs the same
however many are in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from loopwright.core.together import GRACE_SECONDS, to_its_end, together
from loopwright.core.wakeup import WakeUp
from loopwright.ports import ReplayBuffer, StartedGroup
from loopwright.produce.budgets import FirstFailures
from loopwright.produce.group_filler import EndedGroup, GroupFiller, Groups
from loopwright.produce.in_flight import InFlight
from loopwright.produce.rollouts import RolloutRunner
from loopwright.produce.settings import ProduceSettings, TaskSetRuntime
from loopwright.produce.strategies import GroupSource, ProduceContext
from loopwright.produce.task_set_producer import TaskSetProducer
from loopwright.types import Rollout

log = logging.getLogger("loopwright")

OLDEST = 5
"""How many of the oldest rollouts are listed."""


class GroupScheduler:
    """`context_of` makes what a task set's strategy is shown. `wakeup` is notified when a rollout or a group has
    ended."""

    def __init__(
        self,
        producers: Mapping[str, TaskSetProducer],
        runner: RolloutRunner,
        buffer: ReplayBuffer,
        settings: ProduceSettings,
        context_of: Callable[[TaskSetProducer], ProduceContext],
        on_rollout: Callable[[Rollout], None] | None,
    ) -> None:
        self.wakeup = WakeUp()
        self.slots = runner.slots(self._moved)
        self.moves = 0
        """Grows whenever something moves."""
        self._producers = list(producers.values())
        self._by_name = producers
        self._in_lockstep = runner.in_lockstep
        self._context_of = context_of
        self._on_rollout = on_rollout
        self._first_failures = FirstFailures()
        self._in_flight: InFlight[list[EndedGroup]] = InFlight(self._moved)
        self._samples = settings.samples_per_task
        self._filler = GroupFiller(
            runner, self.slots, buffer, samples=self._samples, least=settings.least, saw=self._saw
        )
        self._starting = asyncio.Lock()
        self._drawing = 0
        """Groups that were chosen but not drawn yet, so their agents are not announced yet."""
        self._turn = 0

    @property
    def is_quiet(self) -> bool:
        """Whether no group is in flight, being started, or left to be claimed."""
        return not (self._in_flight or self._in_flight.unclaimed or self._starting.locked())

    @property
    def slot_is_free(self) -> bool:
        """Whether another group may expect slots. In lockstep always: all groups of a step start together, and their
        agents wait for slots in order."""
        return self._in_lockstep or self.slots.free > self._drawing * self._samples

    @property
    def may_start(self) -> bool:
        """Whether some strategy wants to start a group."""
        return self._choose() is not None

    async def start(self, version: int, is_open: Callable[[], bool]) -> None:
        """Start all groups that may start, as long as production `is_open` and nobody drains it."""
        if self._starting.locked() or (self._in_lockstep and self._in_flight):
            return
        async with self._starting:
            wave: list[tuple[StartedGroup, TaskSetRuntime]] = []
            while is_open() and (chosen := self._choose_all()):
                wave += await self._draw(chosen, version)
                if not self._in_lockstep:
                    for group in wave:
                        self._fill([group])
                    wave.clear()
            if wave:
                order = list(self._by_name)
                self._fill(sorted(wave, key=lambda group: (order.index(group[1].name), group[0].row.draw)))

    def claim(self, step: int) -> None:
        """Count the groups that have ended. Raises what filling them raised, and BudgetError if a budget is spent."""
        if not self._in_flight.unclaimed:
            return
        while (ended := self._in_flight.claim()) is not None:
            for one in ended:
                self._first_failures.filter_failed(one.group.task_set, one.failures)
                self._by_name[one.group.task_set].count(one, step)
        # Counting may spend a budget. Then a step may be ready, or no group may start: whoever waits must look again.
        self.wakeup.notify()

    async def drain(self) -> None:
        """Wait until all groups in flight have ended. Nothing starts meanwhile."""
        async with self._starting:
            while self._in_flight:
                await self.wakeup.news.wait()
        self.wakeup.notify()

    async def abandon(self) -> None:
        """Cancel all groups in flight. They go back to the buffer with what is stored of them."""
        left_behind = await self._in_flight.cancel()
        if left_behind:
            words = "these groups were cancelled, did not end within %g s, and are left behind: %s\n%s"
            log.warning(words, GRACE_SECONDS, ", ".join(left_behind), self.describe())
        await self._filler.give_back()

    def describe(self) -> str:
        """How many agents run, and those that have run longest."""
        oldest = [f"    {key} for {seconds:.1f} s" for key, seconds in self.slots.oldest(OLDEST)]
        more = "; the oldest rollouts:" if oldest else ""
        return "\n".join([f"  {self.slots.in_use} of {self.slots.size} slots are in use{more}", *oldest])

    def _choose_all(self) -> list[tuple[TaskSetProducer, GroupSource]]:
        """All groups that may start now, task sets in turn. Each counts as started."""
        chosen = []
        while found := self._choose():
            place, source = found
            producer, self._turn = self._producers[place], place + 1
            producer.reserve(source)
            self._drawing += 1
            chosen.append((producer, source))
        return chosen

    async def _draw(
        self, chosen: Sequence[tuple[TaskSetProducer, GroupSource]], version: int
    ) -> list[tuple[StartedGroup, TaskSetRuntime]]:
        """Draw the chosen groups at once: they share a commit, and an engine sees them as one batch. Once begun, this
        runs to its end: if it were cancelled, nobody would settle a group that is in the buffer already."""
        try:
            drawn = await to_its_end(together(self._draw_one(producer, source, version) for producer, source in chosen))
        finally:
            self._drawing = 0
        for group, (producer, _) in zip(drawn, chosen, strict=True):
            producer.started(group)
        return [(group, producer.task_set) for group, (producer, _) in zip(drawn, chosen, strict=True)]

    async def _draw_one(self, producer: TaskSetProducer, source: GroupSource, version: int) -> StartedGroup:
        group = await producer.draw(source, version)
        self._filler.own(group.row)
        return group

    def _choose(self) -> tuple[int, GroupSource] | None:
        """The next producer in turn that may start a group, and where it comes from."""
        for offset in range(len(self._producers)):
            place = (self._turn + offset) % len(self._producers)
            if source := self._producers[place].choose(self._context_of(self._producers[place])):
                return place, source
        return None

    def _fill(self, groups: Groups) -> None:
        self.slots.announce(self._filler.agents(groups))
        name = ", ".join(f"{started.row.task_set}/{started.row.draw:06d}" for started, _ in groups)
        self._in_flight.schedule(self._filler.fill(groups), name)

    def _moved(self) -> None:
        self.moves += 1
        self.wakeup.notify()

    def _saw(self, rollout: Rollout) -> None:
        self._by_name[rollout.key.task_set].tally.saw(rollout)
        self._first_failures.saw(rollout)
        if self._on_rollout is not None:
            self._on_rollout(rollout)
