"""When one more group may be started. Numbers are groups of one task set, counted since the run was opened.

What is in hand (being made, interrupted, complete or taken) never exceeds a limit. So whatever version samples a group,
there is a step within its horizon that can take it; and a group that falls away is replaced without being asked for.
"""

from __future__ import annotations

import math

from loopwright.core.progress import ProduceProgress


def horizon_limit(
    progress: ProduceProgress, task_set: str, version: int, horizon: int, last_step: int | None = None
) -> int:
    """As many groups as all steps may use that weights `version` may feed: what is started beyond it is too old
    when its turn comes."""
    step = version + horizon
    return progress.target_upto(step if last_step is None else min(step, last_step))[task_set]


def window_limit(target: int, batch: int, over_sample: float, ahead: int) -> int:
    """Colocated: what is needed up to this step, and a share of its `batch` more, so that the slowest need not be
    waited for; within the horizon, whose limit is `ahead`."""
    return min(target + math.ceil(over_sample * batch), ahead)


def has_room(in_hand: int, limit: int) -> bool:
    """Whether another group may be started."""
    return in_hand < limit


def tail_of(expired: int, batch: int, at_least: int) -> int:
    """How many groups of a step are made from expired ones alone: none until `at_least` of them wait."""
    return min(expired, batch) if expired >= at_least else 0
