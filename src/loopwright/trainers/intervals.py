"""Says after which train steps of a run an evaluation, a checkpoint or a weight update is due."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """How many steps to train, and how many steps lie between two evaluations, checkpoints or weight updates. 0 means
    never; after the last step everything is due.

    With `on_demand`, the engines get new weights earlier if production cannot continue without them.
    """

    steps: int
    evaluate: int
    checkpoint: int
    sync: int = 1
    on_demand: bool = False

    def evaluates(self, step: int) -> bool:
        """Whether the weights after `step` are evaluated. Step 0 is before training."""
        return step == 0 or self._due(step, self.evaluate)

    def checkpoints(self, step: int) -> bool:
        return self._due(step, self.checkpoint)

    def syncs(self, step: int, *, wanted: bool) -> bool:
        """Whether the engines get the weights after `step`. `wanted`: production cannot continue without them."""
        return self._due(step, self.sync) or (self.on_demand and wanted)

    def _due(self, step: int, interval: int) -> bool:
        return step == self.steps or (interval > 0 and step % interval == 0)
