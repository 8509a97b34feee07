"""The rewards as judgers of Loopwright: async, so that they run in the event loop, as a peer's run in its own."""

from __future__ import annotations

from benchmarks import rewards
from loopwright import Episode, Task


async def exact(task: Task, episode: Episode) -> float:
    return rewards.exact(episode.answer, task.truth)


async def dense(task: Task, episode: Episode) -> float:
    return rewards.dense(episode.answer, task.truth)
