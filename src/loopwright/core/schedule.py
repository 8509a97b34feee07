"""The learning rate over a run."""

from __future__ import annotations

import math

from loopwright.types import Schedule


def learning_rate(step: int, *, peak: float, schedule: Schedule, warmup: int, steps: int) -> float:
    """The rate of train step `step` (the first is 1) in a run of `steps`."""
    if step <= warmup:
        return peak * step / (warmup + 1)
    done = min(1.0, (step - warmup - 1) / max(1, steps - warmup))
    match schedule:
        case Schedule.CONSTANT:
            return peak
        case Schedule.LINEAR:
            return peak * (1 - done)
        case Schedule.COSINE:
            return peak * (1 + math.cos(math.pi * done)) / 2
