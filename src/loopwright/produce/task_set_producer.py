"""The production of one task set: where its groups come from, which strategy chooses, and how they ended.

Draws that a resumed run has rolled back or discarded come before new ones, so no draw is skipped (D1).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from loopwright.core.progress import ProduceProgress
from loopwright.errors import RunError
from loopwright.ports import ReplayBuffer, ResumePlan, StartedGroup
from loopwright.produce.budgets import FailureBudget, FilterBudget, StartOrder
from loopwright.produce.group_filler import EndedGroup
from loopwright.produce.metrics import Tally
from loopwright.produce.settings import ProduceSettings, TaskSetRuntime
from loopwright.produce.strategies import GroupSource, ProduceContext, strategy_of
from loopwright.types import GroupStatus, ProduceKind

FRESH = ResumePlan()
"""The plan of a run that has done nothing yet."""

IN_STOCK = (GroupStatus.PENDING, GroupStatus.ABORTED, GroupStatus.EXPIRED, GroupStatus.COMPLETED)
"""The statuses of a group between its draw and its end."""

TAKEN_UP = {GroupSource.EXPIRED: GroupStatus.EXPIRED, GroupSource.ABORTED: GroupStatus.ABORTED}


class TaskSetProducer:
    """The production of one task set. All task sets share `progress`."""

    def __init__(
        self,
        task_set: TaskSetRuntime,
        buffer: ReplayBuffer,
        progress: ProduceProgress,
        settings: ProduceSettings,
        plan: ResumePlan,
    ) -> None:
        self.task_set = task_set
        self.filter_budget = FilterBudget(task_set.name, task_set.filter, settings.filter_budget, plan.filtered)
        self.tally = Tally()
        self._buffer = buffer
        self._progress = progress
        self._redraw = deque(plan.redraw)
        self._next_draw = plan.next_draw
        self._failure_budget = FailureBudget(task_set.name, task_set.judger.name, settings.failure_budget)
        # If `settings.kind` is sync, so are all task sets: `loopwright rollout` uses sync settings with any config.
        kind = settings.kind if settings.kind is ProduceKind.SYNC else task_set.produce or settings.kind
        self.horizon = settings.horizon if kind is ProduceKind.ASYNC else settings.sync_interval
        """For how many steps the weights of one version may make groups of this task set."""
        self._strategy = strategy_of(kind, settings)
        self._order = StartOrder()
        self._reserved: Counter[GroupSource] = Counter()
        """Groups that were chosen and are not drawn yet: the buffer does not count them yet."""
        self._probes_left = 0

    @property
    def name(self) -> str:
        return self.task_set.name

    @property
    def next_draw(self) -> int:
        """The first draw that was never made. A checkpoint needs no more about the sampler."""
        return self._next_draw

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
            batch=self._progress.wanted_of(self.name, step),
            ahead=ahead,
            takes_turns=takes_turns,
            available=self._progress.available(self.name, stock[GroupStatus.COMPLETED]),
            pending=stock[GroupStatus.PENDING] + self._reserved.total(),
            aborted=max(0, stock[GroupStatus.ABORTED] - self._reserved[GroupSource.ABORTED]),
            expired=max(0, stock[GroupStatus.EXPIRED] - self._reserved[GroupSource.EXPIRED]),
            slot_is_free=slot_is_free,
            may_look=self._may_look,
        )

    @property
    def _may_look(self) -> bool:
        """Whether another task may be drawn. If groups that have ended may spend a budget once earlier ones have ended
        too, wait for those: a task set that always fails must not draw more tasks than its budget."""
        failed, filtered = self._order.early(GroupStatus.FAILED), self._order.early(GroupStatus.FILTERED)
        if self._failure_budget.in_a_row + failed >= self._failure_budget.budget:
            return False
        if self.filter_budget.in_a_row + filtered >= self.filter_budget.budget:
            return self._probes_left > 0
        return True

    def begin_step(self, context: ProduceContext) -> None:
        """A new step is taken next. In each step, a task set whose filter drops everything may try a few draws
        again."""
        self._probes_left = context.batch - self._buffer.count(self.name, GroupStatus.COMPLETED)
        self._strategy.begin(context)

    def choose(self, context: ProduceContext) -> GroupSource | None:
        """Where its next group comes from, or None if none may start."""
        return self._strategy.choose(context)

    def reserve(self, source: GroupSource) -> None:
        """Count a group from `source` as pending until `draw` is done."""
        self._reserved[source] += 1
        self._strategy.started(source)
        self._probes_left -= source is GroupSource.NEW

    async def draw(self, source: GroupSource, version: int) -> StartedGroup:
        """Draw the next group from `source`, or take it up again; it is PENDING. The buffer counts it instead of
        `reserve`."""
        try:
            if source is not GroupSource.NEW:
                return await self._take_up(TAKEN_UP[source], version)
            draw = self._redraw.popleft() if self._redraw else self._new_draw()
            return await self._buffer.draw(self.name, draw, self.task_set.sampler.task(draw), version)
        finally:
            self._reserved[source] -= 1

    async def _take_up(self, status: GroupStatus, version: int) -> StartedGroup:
        started = await self._buffer.take_up(self.name, status, version)
        if started is None:
            raise RunError(
                f"task set {self.name!r}: the buffer counts {status} groups and has none to take up",
                remedy="this is a bug of ours: please report it with the output of `loopwright audit`",
            )
        return started

    def _new_draw(self) -> int:
        draw, self._next_draw = self._next_draw, self._next_draw + 1
        return draw

    def started(self, group: StartedGroup) -> None:
        """Note that the group started: it is counted after those that started before it."""
        self._order.start(group.row.draw)

    def lacks(self, step: int) -> int:
        """Groups of the batch of `step` that are not ready."""
        return max(0, self._progress.wanted_of(self.name, step) - self._buffer.ready(self.name, step))

    @property
    def is_excused(self) -> bool:
        """Whether the step must do without more of its groups: its filter budget and draws are spent, and none is
        coming."""
        unmade = [status for status in IN_STOCK if status is not GroupStatus.COMPLETED]
        may_come = self._reserved.total() or self._order.is_busy or any(map(self.stock.get, unmade))
        return self.filter_budget.is_spent and self._probes_left <= 0 and not may_come

    def count(self, ended: EndedGroup, step: int) -> None:
        """Count an ended group, and its effect on the budgets. Raises if too many groups in a row have failed."""
        self.tally.ended(ended)
        for one in self._order.end(ended):
            self._spend(one, step)

    def _spend(self, ended: EndedGroup, step: int) -> None:
        match ended.status:
            case GroupStatus.FAILED:
                self._failure_budget.group_failed(ended.failures, step)
            case GroupStatus.FILTERED:
                self._failure_budget.group_scored()
                self.filter_budget.filtered(ended.group)
            case GroupStatus.COMPLETED:
                self._failure_budget.group_scored()
                self.filter_budget.kept()

    def standing(self, context: ProduceContext) -> dict[str, Any]:
        """What `describe` says, as JSON values."""
        return {
            "stock": {status.value: count for status, count in self.stock.items()},
            "lacks": self.lacks(context.step),
            "available": context.available,
            "target": context.target,
            "next_group": self.choose(context),
        }

    def describe(self, context: ProduceContext) -> str:
        """What it has, what the next step lacks, and why no group starts."""
        stock = ", ".join(f"{count} {status}" for status, count in self.stock.items())
        limit = "" if context.takes_turns else f", {context.ahead} may be by these weights"
        choice = self.choose(context)
        waits = f"the next group is {choice}" if choice else "no group may start"
        return (
            f"  task set {self.name!r}: {stock}; step {context.step} lacks {self.lacks(context.step)}; "
            f"{context.available} of {context.target} groups are there{limit}; {waits}"
        )
