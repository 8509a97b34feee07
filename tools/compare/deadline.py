"""How much time there is, and its fair shares."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def share(self, parts: int) -> Deadline:
        """The first of so many equal parts of what is left."""
        return Deadline(max(0.0, self._end - time.monotonic()) / parts)
