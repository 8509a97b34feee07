"""Dynamic sampling: which scored groups are worth training on, and how long to look for them (R1, R4).

A group that its filter drops is not trained and another draw takes its place. A task set whose groups are dropped again
and again gives a step what it has; a step that is left with nothing at all ends the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from loopwright.core.advantage import teaches_nothing
from loopwright.errors import BudgetError, FilterError
from loopwright.produce.blaming import ChoiceBlame
from loopwright.types import Failed, FailureCause, Group
from loopwright.workers import FunctionHolder, UserFunction


class Filter(Protocol):
    """Decides which groups are trained."""

    @property
    def name(self) -> str: ...

    async def decide(self, group: Group) -> bool | Failed:
        """Whether to train on the group, or why that cannot be said."""
        ...


class NoSignal:
    """Drops groups whose members are equal: they move nothing."""

    name = "no_signal"

    async def decide(self, group: Group) -> bool | Failed:
        return not teaches_nothing(group.rewards)


class UserFilter(FunctionHolder):
    """The user's `keep(group)`, sync or async, as `async with`. What it does wrong is a failure, not a decision."""

    def __init__(self, path: str, base: Path, timeout_seconds: float) -> None:
        self._blame = _Blame("filter", path)
        super().__init__(UserFunction(self._blame, base, timeout_seconds))

    @property
    def name(self) -> str:
        return self._blame.path

    async def decide(self, group: Group) -> bool | Failed:
        try:
            return await self._function.call(self._blame.decision, group)
        except FilterError as error:
            return Failed(FailureCause.FILTER, str(error.facts["error"]), error.message)


class _Blame(ChoiceBlame):
    def decision(self, kept: object) -> bool:
        if isinstance(kept, bool | np.bool_):
            return bool(kept)
        raise self.returned(kept, "True or False")


class FilterLedger:
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


def nothing_kept(step: int, ledgers: Iterable[FilterLedger]) -> BudgetError:
    """The error of a step for which no task set could give a single group."""
    return BudgetError(
        f"step {step}: there is nothing to train on. {'; '.join(str(ledger) for ledger in ledgers)}",
        remedy="choose tasks that the model solves sometimes, or raise rollout.samples_per_task; "
        "`produce.filter_budget` says how many groups may be filtered in a row",
    )
