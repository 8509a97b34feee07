"""One task set in production: where its groups come from, which strategy chooses, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loopwright.core.progress import ProduceProgress
from loopwright.ports import ReplayBuffer, ResumePlan, Started
from loopwright.produce.context import ProduceContext
from loopwright.produce.draws import Draws
from loopwright.produce.failures import FailureLedger
from loopwright.produce.filtering import FilterLedger
from loopwright.produce.jobs import TaskSetRuntime
from loopwright.produce.ordering import InOrder
from loopwright.produce.settings import ProduceSettings
from loopwright.produce.settling import Ended
from loopwright.produce.strategies import Source, strategy_of
from loopwright.produce.tally import Tally
from loopwright.types import GroupStatus, ProduceKind

IN_STOCK = (GroupStatus.PENDING, GroupStatus.ABORTED, GroupStatus.EXPIRED, GroupStatus.COMPLETED)
"""Where a group may be between its draw and its end."""


class Line:
    """The production of one task set. `progress` is shared by all of them."""

    def __init__(
        self,
        task_set: TaskSetRuntime,
        buffer: ReplayBuffer,
        progress: ProduceProgress,
        settings: ProduceSettings,
        plan: ResumePlan,
    ) -> None:
        self.task_set = task_set
        self.filtering = FilterLedger(task_set.name, task_set.filter, settings.filter_budget, plan.filtered)
        self.tally = Tally()
        self._buffer = buffer
        self._progress = progress
        self._draws = Draws(task_set.name, task_set.sampler, buffer, plan)
        self._failures = FailureLedger(task_set.name, task_set.judger.name, settings.failure_budget)
        # In a sync run all task sets are sync, whatever they say: a session samples from any config.
        kind = settings.kind if settings.kind is ProduceKind.SYNC else task_set.produce or settings.kind
        self.horizon = settings.horizon if kind is ProduceKind.ASYNC else settings.sync_interval
        """For how many steps the weights of one version may make groups of this task set."""
        self._strategy = strategy_of(kind, settings)
        self._order = InOrder()
        self._reserved: Counter[Source] = Counter()
        """Groups that are to be drawn, which the buffer does not count yet."""
        self._probes_left = 0

    @property
    def name(self) -> str:
        return self.task_set.name

    @property
    def next_draw(self) -> int:
        return self._draws.next_draw

    @property
    def stock(self) -> Mapping[GroupStatus, int]:
        """Groups that are on their way to a train step."""
        return {status: self._buffer.count(self.name, status) for status in IN_STOCK}

    def context(self, ahead: int, *, takes_turns: bool, slot_is_free: bool) -> ProduceContext:
        """What the strategy is shown."""
        step, stock = self._progress.next_consumer_step, self.stock
        return ProduceContext(
            step=step,
            target=self._progress.target_upto(step)[self.name],
            batch=self._progress.wanted(step)[self.name],
            ahead=ahead,
            takes_turns=takes_turns,
            available=self._progress.available(self.name, stock[GroupStatus.COMPLETED]),
            pending=stock[GroupStatus.PENDING] + self._reserved.total(),
            aborted=max(0, stock[GroupStatus.ABORTED] - self._reserved[Source.ABORTED]),
            expired=max(0, stock[GroupStatus.EXPIRED] - self._reserved[Source.EXPIRED]),
            slot_is_free=slot_is_free,
            may_look=self._may_look,
        )

    @property
    def _may_look(self) -> bool:
        """Whether another draw is worth it. While it depends on groups under way if a budget is spent, they are waited
        for: a task set that always fails must not fail faster than it is noticed."""
        failed, filtered = self._order.early(GroupStatus.FAILED), self._order.early(GroupStatus.FILTERED)
        if self._failures.in_a_row + failed >= self._failures.budget:
            return False
        if self.filtering.in_a_row + filtered >= self.filtering.budget:
            return self._probes_left > 0
        return True

    def begin_step(self, context: ProduceContext) -> None:
        """Another step is taken next. A task set whose filter drops everything is probed in each."""
        self._probes_left = context.batch - self._buffer.count(self.name, GroupStatus.COMPLETED)
        self._strategy.begin(context)

    def choose(self, context: ProduceContext) -> Source | None:
        """Where its next group comes from, or None while none may start."""
        return self._strategy.choose(context)

    def reserve(self, source: Source) -> None:
        """A group from `source` is drawn next: it counts as pending until `draw` is done."""
        self._reserved[source] += 1
        self._strategy.started(source)
        self._probes_left -= source is Source.NEW

    async def draw(self, source: Source, version: int) -> Started:
        """A group that was reserved. The buffer counts it from now on."""
        try:
            return await self._draws.start(source, version)
        finally:
            self._reserved[source] -= 1

    def started(self, group: Started) -> None:
        """Its turn to be counted, when it ends, is after those that started before."""
        self._order.start(group.row.draw)

    def lacks(self, step: int) -> int:
        """Groups of the batch of `step` that are not ready."""
        return max(0, self._progress.wanted(step)[self.name] - self._buffer.ready(self.name, step))

    @property
    def is_excused(self) -> bool:
        """Whether a step has to do without more of its groups: it has looked long enough, and nothing is under way."""
        unmade = [status for status in IN_STOCK if status is not GroupStatus.COMPLETED]
        may_come = self._reserved.total() or self._order.is_busy or any(map(self.stock.get, unmade))
        return self.filtering.is_spent and self._probes_left <= 0 and not may_come

    def count(self, ended: Ended, step: int) -> None:
        """Keep the numbers and the budgets; raises when too many groups in a row have failed."""
        self.tally.ended(ended)
        for one in self._order.end(ended):
            self._spend(one, step)

    def _spend(self, ended: Ended, step: int) -> None:
        match ended.status:
            case GroupStatus.FAILED:
                self._failures.group_failed(ended.failures, step)
            case GroupStatus.FILTERED:
                self._failures.group_scored()
                self.filtering.filtered(ended.group)
            case GroupStatus.COMPLETED:
                self._failures.group_scored()
                self.filtering.kept()
