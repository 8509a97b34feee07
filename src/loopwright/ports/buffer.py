"""Groups between production and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopwright.ports.storage import GroupRow
from loopwright.types import Group, GroupStatus, Rollout, Task, TrainedRollout


@dataclass(frozen=True, slots=True)
class StartedGroup:
    """A group in production, with the latest attempt of each member that is already stored.

    A stored member may be whole, partial (it continues from its tokens), unscored or failed. When a group has expired,
    its old members are left out here and are made again: `first_attempts` says with which attempt number each starts.
    """

    row: GroupRow
    stored: tuple[Rollout, ...] = ()
    first_attempts: Mapping[int, int] = field(default_factory=dict)


class ReplayBuffer(Protocol):
    """Knows readiness, order, staleness and storage. A group is in exactly one status at any moment (R3).

    When an `async` method has returned, its change is durable (D1). `count` and `ready` read memory and never wait. A
    group that was taken counts as CONSUMED from then on.
    """

    @property
    def masked_tokens(self) -> int:
        """How many tokens were masked so far because they were too old when their group was taken."""
        ...

    @property
    def constrained_tokens(self) -> int:
        """How many tokens were masked so far because a constraint left no choice about them."""
        ...

    def count(self, task_set: str, status: GroupStatus) -> int:
        """Groups of the surviving lineage in `status`."""
        ...

    def ready(self, task_set: str, step: int) -> int:
        """Completed groups that `take` could hand to train step `step`.

        With `stale: wait`, a group is not ready while an older group of its task set is PENDING or ABORTED. No group of
        any task set is ready while such a group could be trained at this step for the last time.
        """
        ...

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> StartedGroup:
        """A new group, PENDING."""
        ...

    async def take_up(self, task_set: str, status: GroupStatus, version: int) -> StartedGroup | None:
        """Make the oldest group in `status` (EXPIRED or ABORTED) PENDING again. None if there is no such group.

        `version` is the version of the weights that it continues with.
        """
        ...

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        """Store one member: scored, failed, not yet scored, or partial. The next put replaces a partial one."""
        ...

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        """Store the rewards of rollouts that are stored without a score."""
        ...

    async def settle(self, row: GroupRow, status: GroupStatus, why: str | None = None) -> None:
        """End a PENDING group: it is finished (COMPLETED, FILTERED, FAILED) or interrupted (ABORTED). `why`
        is the reason, for people."""
        ...

    async def expire(self, step: int) -> None:
        """Apply the policy for old tokens to completed groups that are too old for train step `step`. From now on it
        also applies to groups that are already too old when they are completed."""
        ...

    async def take(self, step: int, wanted: Mapping[str, int]) -> tuple[Group, ...]:
        """The oldest completed groups, as many as wanted of each task set; constrained tokens, and those that are
        too old for `step`, are masked.

        They are handed out once. Asking for more than are ready is an error.
        """
        ...

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        """Record that groups which were taken have been trained at `step`, and what the step computed of their
        rollouts."""
        ...
