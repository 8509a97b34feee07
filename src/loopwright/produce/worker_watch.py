"""Whether workers are still there: a rollout whose worker is silent for too long is ended as infrastructure (R2)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from loopwright.core.together import own_task
from loopwright.errors import WorkerLostError
from loopwright.ports import RolloutWorker
from loopwright.types import RolloutKey

LOOKS = 10
"""All rollouts in flight are looked at after each such part of the limit. One timer serves all of them: a timer for
each made production slower by a twentieth."""


class WorkerWatch:
    """Watches the rollouts that `worker` runs. `seconds` is how long it may be silent."""

    def __init__(self, worker: RolloutWorker, seconds: float) -> None:
        self._worker = worker
        self.seconds = seconds
        self._watched: dict[RolloutKey, Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def over(self, key: RolloutKey) -> Watched:
        """Watch one rollout, as `with`. Its block ends with WorkerLostError if the worker is silent for too long."""
        return Watched(self, key)

    def begin(self, key: RolloutKey, watched: Watched) -> None:
        self._watched[key] = watched
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds / LOOKS, self._look)

    def end(self, key: RolloutKey) -> None:
        del self._watched[key]
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        for key, watched in self._watched.items():
            try:
                if self._worker.silent_seconds(key) >= self.seconds:
                    watched.give_up(self._lost(key))
            except Exception as error:
                # A bug of ours belongs to the run, not to the timer that met it.
                watched.give_up(error)
        self._timer = asyncio.get_running_loop().call_later(self.seconds / LOOKS, self._look)

    def _lost(self, key: RolloutKey) -> WorkerLostError:
        return WorkerLostError(
            f"the worker of rollout {key} was silent for {self.seconds:g} s",
            remedy="look at the worker's log and at its machine; the rollout is tried again",
        )


class Watched:
    """One rollout that is watched. The block's task is cancelled when its worker is lost."""

    __slots__ = ("_cancelling", "_error", "_key", "_task", "_watch")

    def __init__(self, watch: WorkerWatch, key: RolloutKey) -> None:
        self._watch = watch
        self._key = key
        self._error: Exception | None = None

    def __enter__(self) -> None:
        self._task: asyncio.Task[Any] = own_task()
        self._cancelling = self._task.cancelling()
        self._watch.begin(self._key, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.end(self._key)
        # A cancellation by somebody else stays one.
        ours = self._error is not None and self._task.uncancel() <= self._cancelling
        if ours and self._error is not None and kind is asyncio.CancelledError:
            raise self._error from None

    def give_up(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._task.cancel()
