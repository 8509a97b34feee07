"""The boundary around judgers (R1, R2).

A JudgeError becomes a typed failure here, once. Before that the judger is asked again, without a new rollout, because
the episode is sound. A failure never becomes a reward. Our own bugs are not caught, and stop the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from loopwright.errors import JudgeError
from loopwright.ports import Judger
from loopwright.types import Failed, FailureCause, Reward, Rollout


async def judged(rollouts: Sequence[Rollout], judger: Judger, attempts: int) -> list[Rollout]:
    """The rollouts of one task, either all scored or all failed. The judger is asked up to `attempts` times."""
    task = rollouts[0].task
    episodes = [rollout.episode for rollout in rollouts if rollout.episode is not None]
    clock, began = time.monotonic(), time.time()
    for left in reversed(range(attempts)):
        try:
            rewards: Sequence[Reward] = await judger.score(task, episodes)
            break
        except JudgeError as error:
            if not left:
                rewards = [_failed(error)] * len(rollouts)
    seconds = time.monotonic() - clock
    return [rollout.judged(reward, seconds, began) for rollout, reward in zip(rollouts, rewards, strict=True)]


def _failed(error: JudgeError) -> Failed:
    # The detail includes the remedy, because users see nothing else of the error.
    detail = f"{error.message} ({error.remedy})"
    return Failed(FailureCause.JUDGE, str(error.facts.get("error", "JudgeError")), detail)
