"""The order in which a task set's groups are taken up.

What a resumed run left over comes first: groups that only need their missing members, then draws that were rolled back
or discarded, then new ones. So nothing that was drawn is skipped (D1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from loopwright.ports import GroupRow, ResumePlan, Sampler, Storage
from loopwright.types import Group, Rollout

FRESH = ResumePlan(pending=(), completed=(), redraw=(), next_draw=0)
"""The plan of a run that has done nothing yet."""


@dataclass(frozen=True, slots=True)
class Started:
    """A group that is under way, with the members that were stored before the run was interrupted."""

    row: GroupRow
    stored: tuple[Rollout, ...] = ()


class Draws:
    """One task set's line of groups."""

    def __init__(self, name: str, sampler: Sampler, storage: Storage, plan: ResumePlan = FRESH) -> None:
        self._name = name
        self._sampler = sampler
        self._storage = storage
        self._completed = deque(plan.completed)
        self._pending = deque(plan.pending)
        self._redraw = deque(plan.redraw)
        self._next_draw = plan.next_draw

    @property
    def next_draw(self) -> int:
        """The first draw that was never made: all that a checkpoint needs to know of the sampler."""
        return self._next_draw

    def take_completed(self, count: int) -> list[Group]:
        """Up to `count` groups that are ready as they are."""
        return [self._completed.popleft() for _ in range(min(count, len(self._completed)))]

    async def start(self, version: int) -> Started:
        """The next group to work on, recorded as PENDING."""
        if self._pending:
            row = self._pending.popleft()
            return Started(row, await self._storage.rollouts_of(row.task_set, row.draw))
        draw = self._redraw.popleft() if self._redraw else self._new_draw()
        return Started(await self._storage.draw(self._name, draw, self._sampler.task(draw), version))

    def _new_draw(self) -> int:
        draw, self._next_draw = self._next_draw, self._next_draw + 1
        return draw
