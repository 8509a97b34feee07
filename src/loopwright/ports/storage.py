"""The durable truth of what was drawn, produced and consumed. The unit is a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopwright.types import Group, GroupStatus, Rollout, Stale, Task


@dataclass(frozen=True, slots=True)
class StalePolicy:
    """Version v may feed train steps v+1 .. v+horizon; without a horizon, tokens never become too old.

    With `stale: retry`, a group that is too old is made again, at most `max_expiries` times.
    """

    stale: Stale = Stale.MASK
    horizon: int | None = 1
    max_expiries: int = 0


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One drawn group as the ledger knows it. `round` counts how often the same draw was drawn again, `expiries` how
    often its members became too old and were made anew."""

    task_set: str
    draw: int
    round: int
    task: Task
    version: int
    status: GroupStatus
    step: int | None = None
    expiries: int = 0


@dataclass(frozen=True, slots=True)
class MemberRow:
    """The latest attempt at a member, without its tokens. `oldest` is the version of its oldest sampled token, and
    `expiries` those of its group when it was made: if the group has more by now, the member is to be made again.
    `first` is the first attempt that was made with so many expiries."""

    member: int
    attempt: int
    first: int
    expiries: int
    oldest: int | None
    is_scored: bool


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A group that is neither trained nor through: ABORTED, EXPIRED or COMPLETED."""

    row: GroupRow
    members: tuple[MemberRow, ...]


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a task set continues with: groups that it holds, then draws to make again, then new ones."""

    held: tuple[HeldGroup, ...] = ()
    """In the order of their draws."""
    redraw: tuple[int, ...] = ()
    """Draws whose groups were rolled back or discarded: they come before new ones."""
    next_draw: int = 0
    filtered: int = 0
    """How many groups in a row, the latest ones, were filtered."""


class Storage(Protocol):
    """Whatever has returned is committed: what was acknowledged survives `kill -9` (D1).

    A storage records; which move a group may make next is the buffer's to know.
    """

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        """Record that a group was drawn; it is PENDING."""
        ...

    async def take_up(self, row: GroupRow, version: int) -> GroupRow:
        """Record that a group goes on, with weights `version`; it is PENDING again."""
        ...

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        """Store one rollout: scored, failed, unscored as yet, or partial. Only a partial one can be replaced."""
        ...

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        """Store the rewards of rollouts that are stored without a score: all of them, or, when one is refused, none."""
        ...

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus) -> None:
        """Move the current round of the named (task_set, draw) groups on: all of them, or none. EXPIRED is counted."""
        ...

    async def consume(self, groups: Sequence[Group], step: int) -> None:
        """Record that the groups, as they are here, were trained at `step`, in this order: all of them, or none."""
        ...

    async def put_eval(self, step: int, task_set: str, mode: str, rollouts: Sequence[Rollout]) -> None:
        """Store the rollouts of one evaluation. A second evaluation of the same step replaces the first."""
        ...

    async def resume(
        self, task_sets: Sequence[str], *, step: int, next_draws: Mapping[str, int] | None, policy: StalePolicy
    ) -> Mapping[str, ResumePlan]:
        """Bring the ledger to checkpoint `step`, all task sets of it, and say for each of those that are named what is
        left to do. A new lineage begins.

        Consumption at later steps is undone, groups sampled by later versions are rolled back, and groups that were
        PENDING are ABORTED: they go on member by member. So are groups that FAILED for want of a judge since the last
        one that was consumed: the judge may be back. With `next_draws` (deterministic runs) everything from those
        draws on is discarded, to be produced again. `policy` is what holds from here on.
        """
        ...

    async def rollouts_of(self, task_set: str, draw: int) -> tuple[Rollout, ...]:
        """The latest attempt of each stored member in the draw's current round, in member order. Members that were made
        before the group expired are left out."""
        ...

    async def counts(self) -> Mapping[str, Mapping[GroupStatus, int]]:
        """Groups by task set and status: the conservation table (R3)."""
        ...

    async def flush(self) -> None:
        """Let all that has returned survive a power cut as well. A checkpoint is on disk for good, and must not know of
        steps whose consumption is lost: their groups would be trained twice."""
        ...

    async def archive(self, step: int) -> None:
        """Move the tokens and transcripts of groups that are over up to `step`, which has a checkpoint, to where they
        are out of the way, whether they were trained or not. They can still be read."""
        ...
