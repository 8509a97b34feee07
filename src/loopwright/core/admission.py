"""When one more group may be started. Numbers are groups of one task set, counted since the run was opened.

The number of groups in hand (pending, aborted, completed or taken) never exceeds a limit. So for each group there is a
step within the horizon of its version that can take it. A group that drops out is replaced without a special case.
"""

from __future__ import annotations

import math

from loopwright.core.progress import ProduceProgress


def horizon_limit(
    progress: ProduceProgress, task_set: str, version: int, horizon: int, last_step: int | None = None
) -> int:
    """How many groups are needed by all steps that weights `version` may feed. A group that is started beyond this
    limit would be too old when its step comes."""
    step = version + horizon
    return progress.target_upto(step if last_step is None else min(step, last_step))[task_set]


def window_limit(target: int, batch: int, over_sample: float, ahead: int) -> int:
    """The limit of a colocated run: the groups needed up to this step, plus a share of its `batch`, so that the step
    need not wait for the slowest group. It is never above `ahead`, the limit of the horizon."""
    return min(target + math.ceil(over_sample * batch), ahead)


def has_room(in_hand: int, limit: int) -> bool:
    """Whether another group may be started."""
    return in_hand < limit


def tail_of(expired: int, batch: int, at_least: int) -> int:
    """How many groups of a step are made from expired ones only. It is 0 until `at_least` expired groups wait."""
    return min(expired, batch) if expired >= at_least else 0
