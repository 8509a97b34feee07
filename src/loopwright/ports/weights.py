"""How new weights reach the engines."""

from __future__ import annotations

from typing import Protocol


class WeightPublisher(Protocol):
    """Moves the learner's weights to every engine."""

    async def publish(self, version: int) -> None:
        """Returns when the engines sample with the learner's weights `version`."""
        ...
