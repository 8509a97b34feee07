"""The durable record of what was drawn, produced and consumed. It is stored rollout by rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopwright.types import Group, GroupStatus, Rollout, Stale, Task, TrainedRollout


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
    """One drawn group as the ledger stores it. `round` counts how often the same draw was drawn again. `expiries`
    counts how often its members became too old and were made again."""

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
    """The latest attempt at a member, without its tokens. `oldest` is the version of its oldest sampled token.
    `expiries` is the group's count when the member was made: if the group has more by now, the member must be made
    again. `first` is the first attempt that was made with this count."""

    member: int
    attempt: int
    first: int
    expiries: int
    oldest: int | None
    is_scored: bool


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A group that is still to be trained: it is ABORTED, EXPIRED or COMPLETED."""

    row: GroupRow
    members: tuple[MemberRow, ...]


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a task set continues with: first the groups that it holds, then draws to make again, then new draws."""

    held: tuple[HeldGroup, ...] = ()
    """In the order of their draws."""
    redraw: tuple[int, ...] = ()
    """Draws whose groups were rolled back or discarded. They are drawn before new ones."""
    next_draw: int = 0
    filtered: int = 0
    """How many of the latest groups, in a row, were filtered."""


class Storage(Protocol):
    """When a method has returned, its change is committed and survives `kill -9` (D1).

    A storage only records. The buffer decides which status a group may get next.
    """

    @property
    def lineage(self) -> int:
        """The number of the present lineage, and before `resume` that of the one that it will begin."""
        ...

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        """Record that a group was drawn; it is PENDING."""
        ...

    async def take_up(self, row: GroupRow, version: int) -> GroupRow:
        """Record that a group goes on, with weights `version`; it is PENDING again."""
        ...

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        """Store one rollout: scored, failed, not yet scored, or partial. Only a partial one can be replaced.

        If the caller is cancelled while it waits, the rollout is stored all the same, before whatever is asked next."""
        ...

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        """Store the rewards of rollouts that are stored without a score: all of them, or, when one is refused, none."""
        ...

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, why: str | None = None) -> None:
        """Set the status of the named (task_set, draw) groups in their current round: of all, or of none. Each EXPIRED
        adds one to the group's `expiries`. `why` is the reason, for people, until the status changes again."""
        ...

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        """Record that these groups, with the masks that they have here, were trained at `step`, in this order: all of
        them, or none. `trained` is what the step computed of their rollouts."""
        ...

    async def put_eval(self, step: int, task_set: str, mode: str, rollouts: Sequence[Rollout]) -> None:
        """Store the rollouts of one evaluation. A second evaluation of the same step replaces the first."""
        ...

    async def evaluations(self) -> frozenset[tuple[int, str, str]]:
        """Step, task set and mode of each stored evaluation."""
        ...

    async def resume(
        self, task_sets: Sequence[str], *, step: int, next_draws: Mapping[str, int] | None, policy: StalePolicy
    ) -> Mapping[str, ResumePlan]:
        """Bring the whole ledger back to checkpoint `step`, and say for each of the named task sets what is left to do.
        A new lineage begins.

        Consumption at later steps is undone. Groups sampled by later versions are rolled back. Groups that were PENDING
        become ABORTED, and continue member by member. Groups that FAILED because their judger was away, since the last
        consumed group, become ABORTED too, because the judger may be back. With `next_draws` (deterministic runs, and
        an empty ledger whose run is not new) everything from those draws on is discarded and produced again. `policy`
        is the one that applies from now on.
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
        """Make all committed changes survive a power cut too. A checkpoint is flushed to disk; if the consumption of
        its steps were lost, their groups would be trained twice."""
        ...

    async def archive(self, step: int) -> None:
        """Move the tokens and transcripts of groups that ended up to `step`, trained or not, out of the database.
        `step` has a checkpoint. The moved data can still be read."""
        ...
