"""The base of judgers that score each episode by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from loopwright.types import Episode, Scored, Task


class MemberJudger(ABC):
    """A `Judger` whose subclass scores one episode."""

    judges_groups: ClassVar[bool] = False

    @abstractmethod
    async def judge(self, task: Task, episode: Episode) -> Scored:
        """Score the episode, or raise JudgeError."""

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        return [await self.judge(task, episode) for episode in episodes]
