"""An event loop with a virtual clock: when nothing can run, the clock jumps to the next timer.

Hours of sleeping take milliseconds, always in the same order. All work must happen in the loop itself: results of other
threads or processes would come too late. Waiting without any timer is an error.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from loopwright.errors import StalledError

T = TypeVar("T")


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in an event loop with a virtual clock that starts at 0, and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual: `asyncio.sleep`, timeouts and timers follow it."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self._now += seconds


class _JumpingSelector(selectors.BaseSelector):
    """Checks its files once, and advances the clock by the time that it should wait for them."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._files = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._files.select(0)
        if not ready and timeout is None:
            raise StalledError(
                "the event loop has nothing to run, and no timer to wait for",
                remedy="look for a future that nobody will set; work of other threads cannot be waited for here",
            )
        if not ready and timeout is not None and timeout > 0:
            self._loop.jump(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()

    def close(self) -> None:
        self._files.close()
