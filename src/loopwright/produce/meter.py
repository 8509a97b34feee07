"""How well the slots are used, and how long production stood still."""

from __future__ import annotations

import asyncio

from loopwright.produce.slots import Slots


class Meter:
    """Measures from one batch to the next."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._since: float | None = None
        self._busy_before = 0.0
        self._paused_at: float | None = None
        self._paused_seconds = 0.0

    def start(self) -> None:
        """Production begins, unless it has begun already."""
        if self._since is None:
            self._since, self._busy_before = _now(), self._slots.busy_seconds()

    def pause(self) -> None:
        if self._paused_at is None:
            self._paused_at = _now()

    def go_on(self) -> None:
        if self._paused_at is not None:
            self._paused_seconds += _now() - self._paused_at
            self._paused_at = None

    def read(self) -> dict[str, float]:
        """The numbers since the last reading."""
        if self._paused_at is not None:
            self.go_on()
            self.pause()
        now, busy = _now(), self._slots.busy_seconds()
        numbers = {"time/paused": self._paused_seconds}
        if self._since is not None and now > self._since:
            numbers["slots/idle"] = 1 - (busy - self._busy_before) / ((now - self._since) * self._slots.size)
        self._since, self._busy_before, self._paused_seconds = now, busy, 0.0
        return numbers


def _now() -> float:
    return asyncio.get_running_loop().time()
