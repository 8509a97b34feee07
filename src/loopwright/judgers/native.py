"""The user's own function as a judger, of one episode or of a whole group.

How the function is called, and what becomes of its mistakes, is in `loopwright.workers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from loopwright.judgers.one_by_one import MemberJudger
from loopwright.judgers.verdict import Signature
from loopwright.types import Episode, Scored, Task
from loopwright.workers import FunctionHolder, UserFunction


class _Native(FunctionHolder):
    """A named function, by import path or `given` as it is. Use it as `async with`."""

    def __init__(
        self,
        name: str,
        path: str,
        base: Path,
        timeout_seconds: float = 10.0,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        given: Callable[..., Any] | None = None,
    ) -> None:
        self._signature = Signature(name, path)
        super().__init__(UserFunction(self._signature, base, timeout_seconds, workers, env, given))

    @property
    def name(self) -> str:
        return self._signature.name


class NativeJudger(_Native, MemberJudger):
    """`def judge(task, episode) -> float | Scored`, sync or async."""

    async def judge(self, task: Task, episode: Episode) -> Scored:
        return await self._function.call(self._signature.scored, task, episode)


class NativeGroupJudger(_Native):
    """`def judge_group(task, episodes) -> Sequence[float | Scored]`, sync or async: one score per episode, in order."""

    judges_groups = True

    async def score(self, task: Task, episodes: Sequence[Episode]) -> tuple[Scored, ...]:
        read = partial(self._signature.scored_group, len(episodes))
        return await self._function.call(read, task, tuple(episodes))
