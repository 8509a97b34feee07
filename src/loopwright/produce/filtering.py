"""Dynamic sampling: which scored groups are worth training on (R1).

A group that its filter drops is not trained, and another draw takes its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from loopwright.core.advantage import teaches_nothing
from loopwright.errors import FilterError
from loopwright.types import Failed, FailureCause, Group
from loopwright.workers import ChoiceBlame, FunctionHolder, UserFunction


class Filter(Protocol):
    """Decides which groups are trained."""

    @property
    def name(self) -> str: ...

    async def decide(self, group: Group) -> bool | Failed:
        """Whether to train on the group, or the failure of the filter."""
        ...


class NoSignal:
    """Drops groups whose members have equal rewards: their gradient is 0."""

    name = "no_signal"

    async def decide(self, group: Group) -> bool | Failed:
        return not teaches_nothing(group.rewards)


class UserFilter(FunctionHolder):
    """The user's `keep(group)`, sync or async. Enter it with `async with`. An exception or a wrong result is a failure,
    not a decision."""

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
