"""What every storage adapter refuses, with the same error texts.

Each of these would break the ledger: a group with two statuses, a rollout without a group, or a rollout that replaces
another.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.errors import RunError
from loopwright.ports import GroupRow
from loopwright.types import GroupStatus, Rollout

DRAWN_AGAIN = frozenset({GroupStatus.ROLLED_BACK, GroupStatus.DISCARDED})
"""Only a draw whose last round has one of these statuses may be drawn again."""


MARKABLE = frozenset(
    {GroupStatus.ABORTED, GroupStatus.COMPLETED, GroupStatus.FILTERED, GroupStatus.FAILED, GroupStatus.EXPIRED}
)


def still_live(task_set: str, draw: int, status: GroupStatus) -> RunError:
    return RunError(
        f"draw {draw} of task set {task_set!r} was already made and is {status.value}",
        remedy="continue from `resume`: it lists the draws to make again and the next new one",
    )


def never_drawn(task_set: str, draw: int) -> RunError:
    return RunError(
        f"draw {draw} of task set {task_set!r} was never recorded",
        remedy="call `draw` and wait for it before storing or marking the group",
    )


def already_stored(rollout: str) -> RunError:
    return RunError(
        f"rollout {rollout} is stored already",
        remedy="give another try of the same member the next attempt number",
    )


def never_stored(rollout: str) -> RunError:
    return RunError(f"rollout {rollout} is not stored", remedy="store a rollout before its reward")


def still_partial(rollout: str) -> RunError:
    return RunError(f"rollout {rollout} was interrupted and is not whole", remedy="finish a rollout before judging it")


def already_scored(rollout: str) -> RunError:
    return RunError(f"rollout {rollout} has a score already", remedy="judge a rollout once")


def check_belongs(row: GroupRow, rollout: Rollout) -> None:
    key = rollout.key
    if (key.task_set, key.draw) != (row.task_set, row.draw):
        raise _stranger(str(key), f"draw {row.draw} of task set {row.task_set!r}")


def check_evaluates(task_set: str, rollouts: Sequence[Rollout]) -> None:
    keys = [rollout.key for rollout in rollouts]
    for key in keys:
        if key.task_set != task_set:
            raise _stranger(str(key), f"the evaluation of {task_set!r}")
    if len(set(keys)) < len(keys):
        raise already_stored(next(str(key) for key in keys if keys.count(key) > 1))


def check_markable(status: GroupStatus) -> None:
    if status not in MARKABLE:
        raise RunError(
            f"groups cannot be marked {status.value}",
            remedy="call `draw`, `take_up`, `consume` or `resume`: they record what comes with that status",
        )


def _stranger(key: str, home: str) -> RunError:
    return RunError(f"rollout {key} does not belong to {home}", remedy="store a rollout under its own key")
