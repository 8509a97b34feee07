"""One task per group: from its start to the status in which it ends (R3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from loopwright.core.together import to_its_end, together
from loopwright.ports import GroupRow, ReplayBuffer
from loopwright.produce.filling import Filling, Groups
from loopwright.produce.settling import Ended, end_of
from loopwright.types import GroupStatus


class GroupMaker:
    """Fills groups and settles them."""

    def __init__(self, filling: Filling, buffer: ReplayBuffer, least: int) -> None:
        self._filling = filling
        self._buffer = buffer
        self._least = least
        self._unsettled: dict[tuple[str, int], GroupRow] = {}
        """Groups of which nobody has said yet how they end."""

    def agents(self, groups: Groups) -> int:
        """How many agents it takes to make the groups."""
        return sum(self._filling.agents(started, task_set) for started, task_set in groups)

    def own(self, row: GroupRow) -> None:
        """Answer for a group from its draw on: it is settled, whatever becomes of it."""
        self._unsettled[row.task_set, row.draw] = row

    async def give_back(self) -> None:
        """Settle the groups whose making has been cancelled, or broke, or never began, as interrupted: they go on from
        what is stored of them. A task that is cancelled before its first step can do nothing, so this is for its owner
        to ask for."""
        while self._unsettled:
            _, row = self._unsettled.popitem()
            await self._buffer.settle(row, GroupStatus.ABORTED)

    async def make(self, groups: Groups) -> list[Ended]:
        """The groups, settled: one, or all those that a lockstep engine has to see together."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        filled = await self._filling.fill(groups)
        ended = await together(
            end_of(one, self._least, task_set.filter) for one, (_, task_set) in zip(filled, groups, strict=True)
        )
        await together(self._settle(started.row, one.status) for one, (started, _) in zip(ended, groups, strict=True))
        return [replace(one, seconds=clock() - begun) for one in ended]

    async def _settle(self, row: GroupRow, status: GroupStatus) -> None:
        """Once begun, it is done: a group must not be settled twice because nobody waited for the first time."""
        del self._unsettled[row.task_set, row.draw]
        await to_its_end(self._buffer.settle(row, status))
