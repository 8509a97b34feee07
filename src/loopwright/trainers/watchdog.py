"""Every wait of a trainer has an end: the work is done, the run is to stop, or nothing has moved for too long (R4).

A train step is no wait: the learner works. All else that a trainer does is waiting for somebody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from loopwright.core.together import call_off
from loopwright.errors import StalledError

T = TypeVar("T")

LOOKS = 20
"""How often a wait looks round before it gives up."""


class Watchdog:
    """Waits for others on behalf of a trainer.

    `progress` is anything that changes whenever something moves: a token, a rollout, a step. When it stays the same for
    `seconds`, the wait ends with StalledError; `describe` says then who waits on whom. `stop` is set when the run is
    to end.
    """

    def __init__(
        self,
        *,
        stop: asyncio.Event,
        seconds: float,
        progress: Callable[[], Hashable],
        describe: Callable[[], str],
    ) -> None:
        self._stop = stop
        self._seconds = seconds
        self._progress = progress
        self._describe = describe

    @property
    def is_stopping(self) -> bool:
        """Whether the run is to end."""
        return self._stop.is_set()

    async def wait(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. When nothing moves, it is cancelled; `what` names in the error what was waited for.

        What goes wrong while it is cancelled is told, too: a disk that is full, say, when it stores what it has.
        """
        task = asyncio.ensure_future(work)
        try:
            await self._watch(task, what)
        except asyncio.CancelledError:
            if (broken := await call_off(task)) is not None:
                raise broken from broken.__cause__
            raise
        except Exception as error:
            if (broken := await call_off(task)) is not None:
                error.add_note(f"besides, {type(broken).__name__}: {broken}")
            raise
        return task.result()

    async def wait_or_stop(self, what: str, work: Coroutine[Any, Any, T]) -> T | None:
        """The same, or None when the run is to end first: then `work` is cancelled, and waited for."""
        task, stopped = asyncio.create_task(self.wait(what, work)), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.wait({task, stopped})
        return None if task.cancelled() else task.result()

    async def _watch(self, task: asyncio.Future[Any], what: str) -> None:
        """Returns when the task is done, and raises when nothing has moved for too long."""
        clock = asyncio.get_running_loop().time
        seen, since = self._progress(), clock()
        while not task.done():
            if clock() - since >= self._seconds:
                raise self._stalled(what)
            await asyncio.wait({task}, timeout=self._seconds / LOOKS)
            if (now := self._progress()) != seen:
                seen, since = now, clock()

    def _stalled(self, what: str) -> StalledError:
        return StalledError(
            f"nothing has moved for {self._seconds:g} s (no token, no rollout, no train step)\n"
            f"  the trainer waits for {what}\n{self._describe()}",
            remedy="look at the oldest rollouts: an agent, a judger or the engine behind them hangs; if they are only "
            "slow, raise trainer.stall_seconds. The same command goes on from the last checkpoint",
            waits_for=what,
        )
