"""How much may go wrong: failures and filtered groups, counted in a row (R2, R4).

A task set whose groups fail again and again stops the run with the reason. One whose groups are filtered again and
again gives a step what it has; a step that is left with nothing at all stops the run.
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
    """Tells of the first failure of each kind, as it happens; the others are for the caller to count."""

    def __init__(self) -> None:
        self._told: set[tuple[str, FailureCause, str]] = set()

    def saw(self, rollout: Rollout) -> None:
        if isinstance(rollout.reward, Failed):
            self._tell(rollout.key.task_set, f"rollout {rollout.key}", rollout.reward)

    def filter_failed(self, task_set: str, failures: Iterable[Failed]) -> None:
        """A filter fails with a whole group; the failures of rollouts were seen before."""
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
        """One group more that cannot be used. Raises when the budget is spent."""
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
            remedy="mend what it names; `produce.failure_budget` says how many groups may fail in a row",
            task_set=self._task_set,
            judger=self._judger,
            causes=dict(self._causes),
        )


class FilterBudget:
    """The groups of one task set that were filtered in a row: already `in_a_row` when the run was resumed."""

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
        """Whether it is time to stop looking. One group that is kept makes it worth looking again."""
        return self.in_a_row >= self.budget

    def __str__(self) -> str:
        rewards = ", ".join(f"{reward:g}" for reward in self._last)
        return (
            f"task set {self._task_set!r}: {self.in_a_row} groups in a row were filtered by {self._name}"
            f" (rewards of the last one: {rewards})"
        )


def nothing_kept(step: int, budgets: Iterable[FilterBudget]) -> BudgetError:
    """The error of a step for which no task set could give a single group."""
    return BudgetError(
        f"step {step}: there is nothing to train on. {'; '.join(str(budget) for budget in budgets)}",
        remedy="choose tasks that the model solves sometimes, or raise rollout.samples_per_task; "
        "`produce.filter_budget` says how many groups may be filtered in a row",
    )


class StartOrder:
    """Groups of one task set that end, in the order in which they were started.

    A group that fails at once ends before a slow one. Counted as they end, a few bad tasks among many slow ones would
    look like a row of failures.
    """

    def __init__(self) -> None:
        self._started: dict[int, EndedGroup | None] = {}
        """By draw, in the order of their start; None while they are under way."""
        self._early: Counter[GroupStatus] = Counter()

    @property
    def is_busy(self) -> bool:
        """Whether a group is under way."""
        return bool(self._started)

    def start(self, draw: int) -> None:
        """A group is started, or goes on after an interruption."""
        self._started[draw] = None

    def end(self, ended: EndedGroup) -> list[EndedGroup]:
        """The groups whose turn has come, now that this one has ended. One that was interrupted keeps its place."""
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
        """Groups that ended as `status`, while one that was started before them is still under way."""
        return self._early[status]
