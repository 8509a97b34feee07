"""Every wait of a trainer ends: the work is done, the run must stop, or nothing has progressed for too long (R4).

A train step is not a wait, because the learner is working. Everything else that a trainer does is waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from loopwright.core.together import call_off, to_its_end
from loopwright.errors import LearnerLostError, StalledError

T = TypeVar("T")

LOOKS = 20
"""How often a wait checks the progress before it gives up."""


class Watchdog:
    """Waits for other parts on behalf of a trainer.

    `progress` returns a value that changes with every token, rollout or step. If it stays the same for `seconds`, the
    wait ends with StalledError, and `describe` says who waits for whom. `stop` is set when the run must end.
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
        self._waits: dict[int, tuple[str, float]] = {}

    @property
    def waits(self) -> list[tuple[str, float]]:
        """What is waited for, and since when (Unix time)."""
        return list(self._waits.values())

    @property
    def is_stopping(self) -> bool:
        """Whether the run must end."""
        return self._stop.is_set()

    async def wait(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. If nothing progresses, `work` is cancelled; `what` names it in the error.

        An exception during the cancellation is reported too, for example a full disk when `work` stores its state.
        """
        task = asyncio.ensure_future(work)
        self._waits[id(task)] = what, time.time()
        try:
            await self._watch(task, what)
        except asyncio.CancelledError:
            if (broken := await call_off(task)) is not None:
                raise broken from broken.__cause__
            raise
        except Exception as error:
            broken = await call_off(task)
            if isinstance(broken, LearnerLostError):
                # Nothing moved because the learner is lost, and a run goes on without it.
                raise broken from error
            if broken is not None:
                error.add_note(f"besides, {type(broken).__name__}: {broken}")
            raise
        finally:
            del self._waits[id(task)]
        return task.result()

    async def wait_or_stop(self, what: str, work: Coroutine[Any, Any, T]) -> T | None:
        """The same, or None if the run must end first. Then `work` is cancelled and awaited."""
        task, stopped = asyncio.create_task(self.wait(what, work)), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            task.cancel()
            # A second cancellation must not leave it running: the next step would start beside it.
            await to_its_end(asyncio.wait({task, stopped}))
        return None if task.cancelled() else task.result()

    async def _watch(self, task: asyncio.Future[Any], what: str) -> None:
        """Return when the task is done. Raise if nothing has progressed for too long."""
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
