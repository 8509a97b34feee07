"""A slow model. On a fast machine a tiny model would answer before a test can interrupt it."""

from __future__ import annotations

import time
from typing import Any


class UnhurriedForward:
    """The forward pass of a loaded model. Each pass takes at least `seconds`. Use it as `replace(loaded,
    forward=...)`."""

    def __init__(self, forward: Any, seconds: float = 0.001) -> None:
        self._forward = forward
        self._seconds = seconds

    def native(self) -> None:
        """There are none: compiled steps cannot be slowed down."""

    def logits(self, *arguments: Any) -> Any:
        time.sleep(self._seconds)
        return self._forward.logits(*arguments)
