"""A time limit for agents. Time in which the engines answer nobody is not charged to the agent (R2)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Self

LOOKS = 100
"""If an agent was held, its timer is set again when it fires: to the seconds that are left, but at least to a LOOKS-th
part of the whole time."""


class AgentTime:
    """Ends its block with TimeoutError after `seconds`. Seconds in which `held` grows are not counted.

    `held` returns for how many seconds in total the engines have answered nobody. `seconds` may be infinite.
    """

    def __init__(self, seconds: float, held: Callable[[], float]) -> None:
        self.seconds = seconds
        self._held = held
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + self.seconds - self._held()
        self._timer = self._loop.call_later(self.seconds, self._look) if math.isfinite(self.seconds) else None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        return self._timeout.expired()

    def _look(self) -> None:
        left = self._due + self._held() - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(max(left, self.seconds / LOOKS), self._look)
        else:
            self._timeout.reschedule(self._loop.time())
