"""Where a task set's groups come from: what was interrupted or has expired, what was rolled back, new tasks.

Draws that a resumed run has rolled back or discarded come before new ones, so nothing that was drawn is skipped (D1).
"""

from __future__ import annotations

from collections import deque

from loopwright.errors import RunError
from loopwright.ports import ReplayBuffer, ResumePlan, Sampler, Started
from loopwright.produce.strategies import Source
from loopwright.types import GroupStatus

FRESH = ResumePlan()
"""The plan of a run that has done nothing yet."""

_STATUS = {Source.EXPIRED: GroupStatus.EXPIRED, Source.ABORTED: GroupStatus.ABORTED}


class Draws:
    """One task set's line of groups."""

    def __init__(self, name: str, sampler: Sampler, buffer: ReplayBuffer, plan: ResumePlan = FRESH) -> None:
        self._name = name
        self._sampler = sampler
        self._buffer = buffer
        self._redraw = deque(plan.redraw)
        self._next_draw = plan.next_draw

    @property
    def next_draw(self) -> int:
        """The first draw that was never made: all that a checkpoint needs to know of the sampler."""
        return self._next_draw

    async def start(self, source: Source, version: int) -> Started:
        """The next group from `source`, PENDING."""
        if source is not Source.NEW:
            return await self._take_up(_STATUS[source], version)
        draw = self._redraw.popleft() if self._redraw else self._new_draw()
        return await self._buffer.draw(self._name, draw, self._sampler.task(draw), version)

    async def _take_up(self, status: GroupStatus, version: int) -> Started:
        started = await self._buffer.take_up(self._name, status, version)
        if started is None:
            raise RunError(
                f"task set {self._name!r}: the buffer counts {status} groups and has none to take up",
                remedy="this is a bug of ours: please report it with the output of `loopwright audit`",
            )
        return started

    def _new_draw(self) -> int:
        draw, self._next_draw = self._next_draw, self._next_draw + 1
        return draw
