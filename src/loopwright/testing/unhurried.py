"""A model that takes its time: on a fast machine, a tiny one has answered before a test can interrupt it."""

from __future__ import annotations

import time
from typing import Any


class UnhurriedForward:
    """The forward pass of a loaded model, each of which takes at least `seconds`: `replace(loaded, forward=...)`."""

    def __init__(self, forward: Any, seconds: float = 0.001) -> None:
        self._forward = forward
        self._seconds = seconds

    def native(self) -> None:
        """None: compiled steps cannot be slowed down."""

    def logits(self, *arguments: Any) -> Any:
        time.sleep(self._seconds)
        return self._forward.logits(*arguments)
