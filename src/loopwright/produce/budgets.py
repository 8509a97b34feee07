"""Limits for groups in a row that fail or are filtered (R2, R4).

If too many groups of a task set fail in a row, the run stops and says why. If too many are filtered in a row, the step
trains on the groups that it has; a step with no group at all stops the run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from loopwright.errors import BudgetError
from loopwright.produce.filtering import Filter
from loopwright.produce.group_filler import EndedGroup
from loopwright.types import Failed, FailureCause, Group, GroupStatus, Rollout

log = logging.getLogger("loopwright")


class FirstFailures:
    """Logs the first failure of each kind when it happens. The caller counts the others."""

    def __init__(self) -> None:
        self._told: set[tuple[str, FailureCause, str]] = set()

    def saw(self, rollout: Rollout) -> None:
        if isinstance(rollout.reward, Failed):
            self._tell(rollout.key.task_set, f"rollout {rollout.key}", rollout.reward)

    def filter_failed(self, task_set: str, failures: Iterable[Failed]) -> None:
        """Log failures of the filter, which concern a whole group. Failures of rollouts were logged by `saw`."""
        for failed in failures:
            if failed.cause is FailureCause.FILTER:
                self._tell(task_set, f"task set {task_set}", failed)

    def _tell(self, task_set: str, where: str, failed: Failed) -> None:
        kind = (task_set, failed.cause, failed.error)
        if kind not in self._told:
            self._told.add(kind)
            words = "%s: %s failure: %s (more of this kind are counted, not shown)"
            log.warning(words, where, failed.cause, failed.detail)


class FailureBudget:
    """The failures of one task set. `budget` is how many of its groups may fail in a row."""

    def __init__(self, task_set: str, judger: str, budget: int) -> None:
        self._task_set = task_set
        self._judger = judger
        self.budget = budget
        self.in_a_row = 0
        self._causes: Counter[str] = Counter()
        self._first_detail = ""

    def group_scored(self) -> None:
        self.in_a_row = 0
        self._causes.clear()
        self._first_detail = ""

    def group_failed(self, failures: Iterable[Failed], step: int) -> None:
        """Count one more failed group. Raises BudgetError when the budget is spent."""
        for failed in failures:
            self._first_detail = self._first_detail or failed.detail
            self._causes[f"{failed.cause} {failed.error}"] += 1
        self.in_a_row += 1
        if self.in_a_row >= self.budget:
            raise self._spent(step)

    def _spent(self, step: int) -> BudgetError:
        causes = ", ".join(f"{count} x {cause}" for cause, count in self._causes.most_common())
        return BudgetError(
            f"step {step}, task set {self._task_set!r}, judger {self._judger!r}: {self.in_a_row} groups in a row "
            f"failed ({causes}). The first of them: {self._first_detail}",
            remedy="fix what it names; `produce.failure_budget` says how many groups may fail in a row",
            task_set=self._task_set,
            judger=self._judger,
            causes=dict(self._causes),
        )


class FilterBudget:
    """The groups of one task set that were filtered in a row. A resumed run starts with the `in_a_row` that it had."""

    def __init__(self, task_set: str, chosen_by: Filter | None, budget: int, in_a_row: int = 0) -> None:
        self._task_set = task_set
        self._name = chosen_by.name if chosen_by else "nothing"
        self.budget = budget
        self.in_a_row = in_a_row if chosen_by else 0
        self._last: tuple[float, ...] = ()

    def kept(self) -> None:
        self.in_a_row = 0

    def filtered(self, group: Group) -> None:
        self.in_a_row += 1
        self._last = group.rewards

    @property
    def is_spent(self) -> bool:
        """Whether too many groups in a row were filtered to go on drawing. One group that is kept resets the count."""
        return self.in_a_row >= self.budget

    def __str__(self) -> str:
        rewards = ", ".join(f"{reward:g}" for reward in self._last)
        return (
            f"task set {self._task_set!r}: {self.in_a_row} groups in a row were filtered by {self._name}"
            f" (rewards of the last one: {rewards})"
        )


def nothing_kept(step: int, budgets: Iterable[FilterBudget]) -> BudgetError:
    """The error of a step that got no group from any task set."""
    return BudgetError(
        f"step {step}: there is nothing to train on. {'; '.join(str(budget) for budget in budgets)}",
        remedy="choose tasks that the model solves sometimes, or raise rollout.samples_per_task; "
        "`produce.filter_budget` says how many groups may be filtered in a row",
    )


class StartOrder:
    """Returns the ended groups of one task set in the order in which they were started.

    A group that fails at once ends before a slow one. If groups were counted as they end, a few bad tasks among many
    slow ones would look like many failures in a row.
    """

    def __init__(self) -> None:
        self._started: dict[int, EndedGroup | None] = {}
        """By draw, in the order of their start; None while they are in flight."""
        self._early: Counter[GroupStatus] = Counter()

    @property
    def is_busy(self) -> bool:
        """Whether a group is in flight."""
        return bool(self._started)

    def start(self, draw: int) -> None:
        """Note that a group has started, or goes on after an interruption."""
        self._started[draw] = None

    def end(self, ended: EndedGroup) -> list[EndedGroup]:
        """The groups that can be counted now that this one has ended. A group that was interrupted keeps its place."""
        if ended.status is GroupStatus.ABORTED:
            return []
        self._started[ended.group.draw] = ended
        self._early[ended.status] += 1
        due = []
        while self._started and (first := self._started[draw := next(iter(self._started))]) is not None:
            del self._started[draw]
            self._early[first.status] -= 1
            due.append(first)
        return due

    def early(self, status: GroupStatus) -> int:
        """How many groups ended as `status` and are not counted yet, because an earlier one is still in flight."""
        return self._early[status]
