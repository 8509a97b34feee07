"""The judger of agents that are programs and bring their reward along. It is never asked."""

from __future__ import annotations

from loopwright.errors import JudgeError
from loopwright.judgers.one_by_one import MemberJudger
from loopwright.types import Episode, Scored, Task


class ProgramScores(MemberJudger):
    """Stands where a run expects a judger. A program whose reward cannot be read has failed already."""

    def __init__(self, name: str = "program") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def judge(self, task: Task, episode: Episode) -> Scored:
        raise JudgeError(
            f"task {task.id!r}: the program's reward is read when it ends, and cannot be read again",
            remedy="name a judger for agents that bring no reward along",
            judger=self._name,
        )
