"""The requests that the adapter of a server has sent, and that have not ended.

The invariants: a call that is cut returns the tokens that have arrived. A call that is cancelled raises CancelledError,
also if it is cut at the same moment. No request stays at the server when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from loopwright.core.partial_answer import joined
from loopwright.core.together import together
from loopwright.types import NOTHING_YET, GenerateRequest, Generation


@dataclass(slots=True, eq=False)
class CallOut:
    """A request that was sent under a `name` that is used once, the version of the weights then, and its tokens so
    far."""

    request: GenerateRequest
    name: str
    version: int
    parts: list[Generation] = field(default_factory=list)


TakeBack = Callable[[CallOut, asyncio.Task[Generation]], Coroutine[Any, Any, None]]
"""Ends a request on the server before its connection is closed, and returns early if its task has ended."""


async def _by_closing(call: CallOut, asking: asyncio.Task[Generation]) -> None:
    """For servers that end a request when its connection is closed."""


class CallsOut:
    """The calls of one adapter. `take_back` is asked for each that nobody waits for any more."""

    def __init__(self, take_back: TakeBack = _by_closing) -> None:
        self._take_back = take_back
        self._asking: dict[CallOut, asyncio.Task[Generation]] = {}

    def names(self, request_id: str) -> list[str]:
        """The names under which the request with this id was sent."""
        return [call.name for call in self._asking if call.request.id == request_id]

    async def answer(self, call: CallOut, asking: Coroutine[Any, Any, Generation]) -> Generation:
        """What the server answers. If the call was cut, the tokens that have arrived."""
        task = asyncio.create_task(asking)
        self._asking[call] = task
        task.add_done_callback(lambda _: self._asking.pop(call))
        try:
            # Only whoever waits for this call can cancel `wait`. To await the task itself would raise CancelledError
            # also when the call is cut, and a cancellation at the same moment could not be told from it.
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._take_back(call, task)
            raise
        finally:
            await _end(task)
        return joined([*call.parts, NOTHING_YET]) if task.cancelled() else task.result()

    async def ended(self, seconds: float) -> bool:
        """Whether all calls that are out have their answers within so many seconds."""
        asking = list(self._asking.values())
        return not asking or not (await asyncio.wait(asking, timeout=seconds))[1]

    async def cut(self, seconds: float) -> None:
        """Wait so long for answers, and take back what is still out."""
        if not await self.ended(seconds):
            await together(self._cut(call, task) for call, task in [*self._asking.items()])

    async def _cut(self, call: CallOut, task: asyncio.Task[Generation]) -> None:
        await self._take_back(call, task)
        await _end(task)


async def _end(task: asyncio.Task[Generation]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        # Nobody may be left to hear of its error, and asyncio would complain of that.
        task.exception()
