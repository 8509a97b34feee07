"""Scores episodes: one by one, or all those of a group together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from loopwright.types import Episode, Scored, Task


class Judger(Protocol):
    """A judger is named once in the config and shared by every task set that names it."""

    @property
    def name(self) -> str: ...

    async def judge(self, task: Task, episode: Episode) -> Scored:
        """Score the episode, or raise JudgeError. It never returns 0 when it cannot decide (R2)."""
        ...


@runtime_checkable
class GroupJudger(Protocol):
    """A judger that compares the episodes of one task, for example by ranking them. It is shared by name like any
    other."""

    @property
    def name(self) -> str: ...

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        """One score per episode, in their order, or JudgeError for all of them."""
        ...
