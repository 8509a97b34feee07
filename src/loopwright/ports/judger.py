"""Scores episodes: one by one, or all those of a group together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loopwright.types import Episode, Scored, Task


class Judger(Protocol):
    """A judger is named once in the config and shared by every task set that names it."""

    @property
    def name(self) -> str: ...

    @property
    def judges_groups(self) -> bool:
        """Whether it compares the episodes of a whole group, for example by ranking them. Others score each episode
        alone."""
        ...

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        """One score per episode, in their order, or JudgeError for all of them.

        A judger never returns 0 when it cannot decide (R2).
        """
        ...
