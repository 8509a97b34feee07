"""Dynamic sampling: which scored groups are worth training on, and how long to look for them (R1, R4).

A group that its filter drops is not trained and another draw takes its place. A task set whose groups are dropped again
and again gives a step what it has; a step that is left with nothing at all ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path

import numpy as np

from loopwright.config import load_symbol
from loopwright.core.advantage import teaches_nothing
from loopwright.core.blame import blame
from loopwright.errors import BudgetError, ConfigError
from loopwright.types import Failed, FailureCause, Group


@dataclass(frozen=True, slots=True)
class Filter:
    """Decides which groups are trained. `keep` may be the user's: what it does wrong is a failure, not a decision."""

    name: str
    keep: Callable[[Group], object]

    def decide(self, group: Group) -> bool | Failed:
        """Whether to train on the group, or why that cannot be said."""
        try:
            kept = self.keep(group)
        except Exception as error:  # the boundary round the user's code: it becomes data
            detail = f"filter {self.name!r} raised {blame(error, self.keep)}"
            return Failed(FailureCause.FILTER, type(error).__name__, detail)
        if isinstance(kept, bool | np.bool_):
            return bool(kept)
        detail = f"filter {self.name!r} returned {kept!r:.60}; it must return True or False"
        return Failed(FailureCause.FILTER, "WrongReturn", detail)


def has_signal(group: Group) -> bool:
    """Whether its members differ: a group of equals moves nothing."""
    return not teaches_nothing(group.rewards)


NO_SIGNAL = Filter("no_signal", has_signal)


def load_filter(path: str, base: Path) -> Filter:
    """The user's `def keep(group) -> bool`."""
    function = load_symbol(path, base)
    if not callable(function) or iscoroutinefunction(function):
        raise ConfigError(
            f"the filter {path!r} is not a plain function",
            remedy="name a function `keep(group)`, not async, that returns True or False",
        )
    return Filter(path, function)


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
