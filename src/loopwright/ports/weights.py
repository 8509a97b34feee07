"""How new weights reach the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from loopwright.types import TensorSpec


class WeightSink(Protocol):
    """Takes the weights of a learner, as a stream of named tensors."""

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        """Say which tensors will come, in this order."""
        ...

    def take(self, bucket: Mapping[str, Any]) -> None:
        """The next tensors. They are the caller's: copy what is needed later."""
        ...


class WeightPublisher(Protocol):
    """Moves the learner's weights to every engine."""

    async def publish(self, version: int) -> Mapping[str, float]:
        """Returns when the engines were proven to sample with the learner's weights `version` (W1). Gives the metrics
        of the update."""
        ...
