"""The boundary round judgers (R1, R2).

A JudgeError becomes a typed failure here, once, after the judge alone was tried again: the episode is sound. It never
becomes a reward. Our own bugs leave through here and stop the run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from loopwright.errors import JudgeError
from loopwright.ports import GroupJudger, Judger
from loopwright.types import Episode, Failed, FailureCause, Reward, Rollout

T = TypeVar("T")


async def score(rollout: Rollout, judger: Judger, attempts: int) -> Rollout:
    """The rollout, scored or failed by its judge, who is asked up to `attempts` times."""
    (episode,) = _episodes([rollout])
    clock = time.monotonic()
    verdict = await _tried(lambda: judger.judge(rollout.task, episode), attempts)
    return rollout.judged(verdict, time.monotonic() - clock)


async def score_together(rollouts: Sequence[Rollout], judger: GroupJudger, attempts: int) -> list[Rollout]:
    """The rollouts of one task, all scored, or all failed by their judge."""
    episodes = _episodes(rollouts)
    clock = time.monotonic()
    verdict = await _tried(lambda: judger.judge_group(rollouts[0].task, episodes), attempts)
    seconds = time.monotonic() - clock
    rewards: Sequence[Reward] = [verdict] * len(rollouts) if isinstance(verdict, Failed) else verdict
    return [rollout.judged(reward, seconds) for rollout, reward in zip(rollouts, rewards, strict=True)]


async def _tried(judge: Callable[[], Awaitable[T]], attempts: int) -> T | Failed:
    for _ in range(attempts - 1):
        try:
            return await judge()
        except JudgeError:
            continue
    try:
        return await judge()
    except JudgeError as error:
        # With what to do about it: whoever trains sees nothing else of the error.
        detail = f"{error.message} ({error.remedy})"
        return Failed(FailureCause.JUDGE, str(error.facts.get("error", "JudgeError")), detail)


def _episodes(rollouts: Sequence[Rollout]) -> tuple[Episode, ...]:
    return tuple(rollout.episode for rollout in rollouts if rollout.episode is not None)
