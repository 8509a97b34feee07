"""Measures the total time of a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Runs while there is at least one reason for it. Seconds with several reasons count once."""

    def __init__(self) -> None:
        self._reasons = 0
        self._since = 0.0
        self._before = 0.0

    def seconds(self) -> float:
        """The seconds that were counted so far."""
        return self._before + (_now() - self._since if self._reasons else 0.0)

    def start(self) -> None:
        """Add a reason."""
        if not self._reasons:
            self._since = _now()
        self._reasons += 1

    def stop(self) -> None:
        """Remove a reason."""
        self._reasons -= 1
        if not self._reasons:
            self._before += _now() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()


def _now() -> float:
    return asyncio.get_running_loop().time()
