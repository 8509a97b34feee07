"""A judger on actors, behind the port of judgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.cluster.crew import Crew
from loopwright.errors import JudgeError, RemoteError, WorkerLostError
from loopwright.types import Episode, Scored, Task

MAX_SILENCE_SECONDS = 60.0
"""An actor of which nothing is heard for so long is lost: its process stands still, or its node cannot be reached."""
MAX_LOSSES = 3
"""How many actors one judgement may lose. After that the episode itself may be what kills them."""


@dataclass(frozen=True, slots=True)
class RayJudger:
    """A `Judger` whose crew holds judgers of the same config. What the port says of it is known here, so that nothing
    is asked of an actor but scores."""

    name: str
    judges_groups: bool
    crew: Crew

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        """A judgement can be made again: if its actor is lost, another one is asked."""
        for left in reversed(range(MAX_LOSSES)):
            try:
                scores: Sequence[Scored] = await self.crew.work("score", task, tuple(episodes))
                return scores
            except RemoteError as odd:
                # What the judger raised cannot be sent, or would have ended the process of a local one.
                raise JudgeError(
                    f"judger {self.name!r} failed: {odd.message}",
                    remedy=odd.remedy,
                    judger=self.name,
                    **{"error": "RemoteError", **odd.facts},
                ) from odd
            except WorkerLostError as lost:
                if not left:
                    raise JudgeError(
                        f"judger {self.name!r} lost {MAX_LOSSES} actors over task {task.id!r}: {lost.message}",
                        remedy=lost.remedy,
                        judger=self.name,
                        error="WorkerDied",
                    ) from lost
        raise AssertionError("unreachable")
