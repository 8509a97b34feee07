"""The shop floor: the groups that are being made at this moment, and who starts the next ones.

A group starts when its strategy says so, task sets taking turns. Its task settles it in the buffer; here it is claimed,
exactly once, and counted. Nothing here looks at more than one group at a time, so a group costs the same however many
are in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from loopwright.core.together import GRACE_SECONDS, to_its_end, together
from loopwright.ports import ReplayBuffer, Started
from loopwright.produce.context import ProduceContext
from loopwright.produce.describe import describe_slots
from loopwright.produce.failures import FirstFailures
from loopwright.produce.filling import Filling, Groups
from loopwright.produce.jobs import TaskSetRuntime
from loopwright.produce.line import Line
from loopwright.produce.making import GroupMaker
from loopwright.produce.pending import Pending
from loopwright.produce.runner import RolloutRunner
from loopwright.produce.settings import ProduceSettings
from loopwright.produce.settling import Ended
from loopwright.produce.signal import Signal
from loopwright.produce.strategies import Source
from loopwright.types import Rollout

log = logging.getLogger("loopwright")


class Floor:
    """`context_of` is what a line's strategy is shown. `signal` is given whenever a rollout or a group has ended."""

    def __init__(
        self,
        lines: Mapping[str, Line],
        runner: RolloutRunner,
        buffer: ReplayBuffer,
        settings: ProduceSettings,
        context_of: Callable[[Line], ProduceContext],
        on_rollout: Callable[[Rollout], None] | None,
    ) -> None:
        self.signal = Signal()
        self.slots = runner.slots(self._moved)
        self.moves = 0
        """Grows whenever something moves."""
        self._lines = list(lines.values())
        self._by_name = lines
        self._in_lockstep = runner.in_lockstep
        self._context_of = context_of
        self._on_rollout = on_rollout
        self._first_failures = FirstFailures()
        self._pending: Pending[list[Ended]] = Pending(self._moved)
        self._samples = settings.samples_per_task
        filling = Filling(runner, self.slots, buffer, samples=self._samples, least=settings.least, saw=self._saw)
        self._maker = GroupMaker(filling, buffer, settings.least)
        self._starting = asyncio.Lock()
        self._drawing = 0
        """Groups that were chosen and are not in the making yet, so that none of their agents is announced."""
        self._turn = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is being made, started or left to be claimed."""
        return not (self._pending or self._pending.unclaimed or self._starting.locked())

    @property
    def slot_is_free(self) -> bool:
        """In lockstep all groups of a step start together, and their agents wait for slots in order."""
        return self._in_lockstep or self.slots.free > self._drawing * self._samples

    @property
    def may_start(self) -> bool:
        """Whether some strategy wants to start a group."""
        return self._choose() is not None

    async def start(self, version: int, is_open: Callable[[], bool]) -> None:
        """Start all groups that may start, as long as production `is_open` and nobody drains it."""
        if self._starting.locked() or (self._in_lockstep and self._pending):
            return
        async with self._starting:
            wave: list[tuple[Started, TaskSetRuntime]] = []
            while is_open() and (chosen := self._choose_all()):
                wave += await self._draw(chosen, version)
                if not self._in_lockstep:
                    for group in wave:
                        self._make([group])
                    wave.clear()
            if wave:
                order = list(self._by_name)
                self._make(sorted(wave, key=lambda group: (order.index(group[1].name), group[0].row.draw)))

    def claim(self, step: int) -> None:
        """Count the groups that have ended. Raises what their making raised, and when a budget is spent."""
        if not self._pending.unclaimed:
            return
        while (ended := self._pending.claim()) is not None:
            for one in ended:
                self._first_failures.filter_failed(one.group.task_set, one.failures)
                self._by_name[one.group.task_set].count(one, step)
        # What is counted may spend a budget, and so make a step ready or close the gate: whoever waits has to look.
        self.signal.notify()

    async def drain(self) -> None:
        """Wait until all groups in flight have ended. Nothing starts meanwhile."""
        async with self._starting:
            while self._pending:
                await self.signal.news.wait()
        self.signal.notify()

    async def abandon(self) -> None:
        """Cancel all groups in flight: they go back to the buffer as far as they got."""
        left_behind = await self._pending.cancel()
        if left_behind:
            words = "these groups were cancelled, did not end within %g s, and are left behind: %s\n%s"
            log.warning(words, GRACE_SECONDS, ", ".join(left_behind), describe_slots(self.slots))
        await self._maker.give_back()

    def _choose_all(self) -> list[tuple[Line, Source]]:
        """All that may start now, in turn. Each counts as started."""
        chosen = []
        while found := self._choose():
            place, source = found
            line, self._turn = self._lines[place], place + 1
            line.reserve(source)
            self._drawing += 1
            chosen.append((line, source))
        return chosen

    async def _draw(self, chosen: Sequence[tuple[Line, Source]], version: int) -> list[tuple[Started, TaskSetRuntime]]:
        """The chosen groups, drawn at once: they share a commit, and an engine sees them as one batch. Once begun, it
        is done: nobody would answer for a group whose draw was cancelled when it was in the buffer already."""
        try:
            drawn = await to_its_end(together(self._draw_one(line, source, version) for line, source in chosen))
        finally:
            self._drawing = 0
        for group, (line, _) in zip(drawn, chosen, strict=True):
            line.started(group)
        return [(group, line.task_set) for group, (line, _) in zip(drawn, chosen, strict=True)]

    async def _draw_one(self, line: Line, source: Source, version: int) -> Started:
        group = await line.draw(source, version)
        self._maker.own(group.row)
        return group

    def _choose(self) -> tuple[int, Source] | None:
        """The next line in turn that may start a group, and where it comes from."""
        for offset in range(len(self._lines)):
            place = (self._turn + offset) % len(self._lines)
            if source := self._lines[place].choose(self._context_of(self._lines[place])):
                return place, source
        return None

    def _make(self, groups: Groups) -> None:
        self.slots.announce(self._maker.agents(groups))
        name = ", ".join(f"{started.row.task_set}/{started.row.draw:06d}" for started, _ in groups)
        self._pending.schedule(self._maker.make(groups), name)

    def _moved(self) -> None:
        self.moves += 1
        self.signal.notify()

    def _saw(self, rollout: Rollout) -> None:
        self._by_name[rollout.key.task_set].tally.saw(rollout)
        self._first_failures.saw(rollout)
        if self._on_rollout is not None:
            self._on_rollout(rollout)
