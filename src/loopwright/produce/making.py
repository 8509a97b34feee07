"""One task per group: from its start to the status in which it ends (R3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from loopwright.core.together import together
from loopwright.ports import ReplayBuffer, Started
from loopwright.produce.filling import Filling, Groups
from loopwright.produce.settling import Ended, end_of
from loopwright.types import GroupStatus


class GroupMaker:
    """Fills groups and settles them. Whatever was made of a group is stored, also when the making is cancelled."""

    def __init__(self, filling: Filling, buffer: ReplayBuffer, least: int) -> None:
        self._filling = filling
        self._buffer = buffer
        self._least = least

    def agents(self, groups: Groups) -> int:
        """How many agents it takes to make the groups."""
        return sum(self._filling.agents(started, task_set) for started, task_set in groups)

    async def make(self, groups: Groups) -> list[Ended]:
        """The groups, settled: one, or all those that a lockstep engine has to see together."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            filled = await self._filling.fill(groups)
        except asyncio.CancelledError:
            await self._give_back([started for started, _ in groups])
            raise
        ended = [end_of(one, self._least, task_set.filter) for one, (_, task_set) in zip(filled, groups, strict=True)]
        await together(
            self._buffer.settle(started.row, one.status) for one, (started, _) in zip(ended, groups, strict=True)
        )
        return [replace(one, seconds=clock() - begun) for one in ended]

    async def _give_back(self, groups: Sequence[Started]) -> None:
        """Cancelled work does not vanish: it goes on from what is stored of it."""
        for group in groups:
            await self._buffer.settle(group.row, GroupStatus.ABORTED)
