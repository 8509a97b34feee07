"""Scores an episode."""

from __future__ import annotations

from typing import Protocol

from loopwright.types import Episode, Scored, Task


class Judger(Protocol):
    """A judger is named once in the config and shared by every task set that names it."""

    @property
    def name(self) -> str: ...

    async def judge(self, task: Task, episode: Episode) -> Scored:
        """Score the episode, or raise JudgeError: it never answers 0 for "could not tell" (R2)."""
        ...
