"""Failures, counted by cause and told once (R2, R4).

A run that fails again and again stops with the reason instead of refilling for ever.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from loopwright.errors import BudgetError
from loopwright.types import Failed, FailureCause, Rollout

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


class FailureLedger:
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
