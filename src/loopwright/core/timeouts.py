"""Time limits on clocks that may stand still.

An agent is not charged for time in which the engines answer nobody (R2). So its clock is not the wall clock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from loopwright.core.together import own_task

LOOKS = 100
MOST_LOOKS = 1000
"""A clock that stands still is read again after such a part of the limit, at most and at least."""
NOTHING_LEFT = 1e-6
"""Seconds. Sums of times are not exact to the last digit."""


class ClockTimeout:
    """Ends its block with TimeoutError when `clock` has advanced by `seconds`, which may be infinite.

    It cancels the block's task as `asyncio.timeout` does, in half the time: every rollout and every call has one.
    """

    __slots__ = ("_cancelling", "_clock", "_end", "_expired", "_is_over", "_loop", "_task", "_timer", "seconds")

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._expired = False
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._task = own_task()
        self._cancelling = self._task.cancelling()
        self._end = self._clock() + self.seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        if math.isfinite(self.seconds):
            self._timer = self._loop.call_at(self._loop.time() + self.seconds, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        # A cancellation by somebody else stays one.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def left(self) -> float:
        """Seconds until the end, by the clock."""
        return self._end - self._clock()

    def expired(self) -> bool:
        return self._expired

    def look_soon(self) -> None:
        """The clock has jumped: if that was the end, say so now."""
        if not self._is_over and self._timer is not None and self.left() <= NOTHING_LEFT:
            self._timer.cancel()
            # Not at once: whoever made the clock jump may leave the block first.
            self._timer = self._loop.call_soon(self._look)

    def _look(self) -> None:
        if (left := self.left()) > NOTHING_LEFT:
            # A clock that stood still may jump: it is read more often than `left` asks for.
            wait = max(min(left, self.seconds / LOOKS), self.seconds / MOST_LOOKS)
            self._timer = self._loop.call_later(wait, self._look)
        else:
            self._expired = True
            self._task.cancel()


@dataclass(frozen=True, slots=True)
class _Span:
    """A period in which a call was running, and the readings of the clock of held seconds at its beginning and end."""

    start: float
    end: float
    held_at_start: float
    held_at_end: float

    @property
    def own_seconds(self) -> float:
        return (self.end - self.start) - (self.held_at_end - self.held_at_start)

    def joined(self, other: _Span) -> _Span:
        first, last = min(self, other, key=lambda span: span.start), max(self, other, key=lambda span: span.end)
        return _Span(first.start, last.end, first.held_at_start, last.held_at_end)


class AgentClock:
    """Counts the seconds of one agent, from its construction on.

    It stands still during model calls, because only the other side knows whether they are held. When a call returns,
    the clock advances by the duration of the call minus the seconds in which it was held. Calls may overlap: each
    second counts once. `held` reads the clock of held seconds as far as it is known here. `on_jump` is called whenever
    the clock has advanced by a call.
    """

    def __init__(self, held: Callable[[], float] = lambda: 0.0) -> None:
        self._held = held
        self._held_since = 0.0
        self._now = asyncio.get_running_loop().time
        self._counted = 0.0
        self._since = self._now()
        self._calls = 0
        self._spans: list[_Span] = []
        """What is known of the time since the first of the present calls began: periods that do not overlap."""
        self.on_jump: Callable[[], None] | None = None

    def seconds(self) -> float:
        if self._calls:
            return self._counted + sum(span.own_seconds for span in self._spans)
        return self._counted + self._now() - self._since

    def estimate(self) -> float:
        """What `seconds` would be now if all calls returned, as far as it is known here how long they were held."""
        running = self._now() - self._since
        return self._counted + running - (self._held() - self._held_since if self._calls else 0.0)

    def call_begins(self) -> tuple[float, float]:
        """A call begins. Returns what `call_ends` needs."""
        now, held = self._now(), self._held()
        if not self._calls:
            self._counted, self._since, self._held_since = self._counted + now - self._since, now, held
        self._calls += 1
        return now, held

    def call_ends(self, begun: tuple[float, float], held: tuple[float, float] | None) -> None:
        """A call ended. `held` are two readings of the clock of held seconds: when the call began and when it ended.
        None: nobody has told, as of a call that was cancelled."""
        began, held_before = begun
        held = (held_before, self._held()) if held is None else held
        now = self._now()
        self._calls -= 1
        if not self._calls and not self._spans and began == self._since:
            # No other call overlapped: most agents ask one thing at a time.
            self._counted += now - began - (held[1] - held[0])
            self._since = now
        else:
            self._join(_Span(began, now, *held))
            if not self._calls:
                self._counted += sum(span.own_seconds for span in self._spans)
                self._since = now
                self._spans.clear()
        if self.on_jump is not None:
            self.on_jump()

    def _join(self, span: _Span) -> None:
        apart = [other for other in self._spans if other.end < span.start or span.end < other.start]
        for other in self._spans:
            span = span if other in apart else span.joined(other)
        self._spans = [*apart, span]
