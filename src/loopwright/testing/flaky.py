"""A judger that fails at chosen calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from loopwright.errors import JudgeError
from loopwright.ports import Judger
from loopwright.types import Episode, Scored, Task


class FlakyJudger:
    """Passes calls on to `judger`. Calls whose numbers (from 0) are in `faults` raise JudgeError instead."""

    def __init__(self, judger: Judger, faults: Collection[int]) -> None:
        self._judger = judger
        self._faults = faults
        self.calls = 0

    @property
    def name(self) -> str:
        return self._judger.name

    @property
    def judges_groups(self) -> bool:
        return self._judger.judges_groups

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        number = self.calls
        self.calls += 1
        if number in self._faults:
            raise JudgeError(f"judger {self.name!r} failed at call {number}", remedy="none: the test asked for it")
        return await self._judger.score(task, episodes)


async def score_one(judger: Judger, task: Task, episode: Episode) -> Scored:
    """What the judger says of one episode."""
    (scored,) = await judger.score(task, [episode])
    return scored
