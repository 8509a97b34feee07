"""The durable truth of what was drawn, produced and consumed. The unit is a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopwright.types import Group, GroupStatus, Rollout, Task


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One drawn group as the ledger knows it. `round` counts how often the same draw was drawn again."""

    task_set: str
    draw: int
    round: int
    task: Task
    version: int
    status: GroupStatus
    step: int | None = None


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a task set continues with: groups to finish or to train first, then new draws."""

    pending: tuple[GroupRow, ...]
    """Drawn, with some rollouts missing."""
    completed: tuple[Group, ...]
    """Ready to be trained, oldest first."""
    redraw: tuple[int, ...]
    """Draws whose groups were rolled back or discarded: they come before new ones."""
    next_draw: int
    filtered: int = 0
    """How many groups in a row, the latest ones, were filtered."""


class Storage(Protocol):
    """Every `put` and `mark` returns after its commit: what was acknowledged survives `kill -9` (D1)."""

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        """Record that a group was drawn; it is PENDING."""
        ...

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        """Store one rollout: scored, failed, or unscored as yet."""
        ...

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        """Store the rewards of rollouts that are stored without a score: all of them, or, when one is refused, none."""
        ...

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, step: int | None = None) -> None:
        """Move the current round of the named (task_set, draw) groups to another status."""
        ...

    async def put_eval(self, step: int, task_set: str, mode: str, rollouts: Sequence[Rollout]) -> None:
        """Store the rollouts of one evaluation. A second evaluation of the same step replaces the first."""
        ...

    async def resume(self, task_set: str, *, step: int, next_draw: int | None) -> ResumePlan:
        """Bring the ledger to checkpoint `step` and say what is left to do.

        Consumption at later steps is undone and groups sampled by later versions are rolled back. Groups that FAILED
        for want of a judge since the last one that was consumed are PENDING again: the judge may be back. With
        `next_draw` (deterministic runs) everything from that draw on is discarded, to be produced again.
        """
        ...

    async def rollouts_of(self, task_set: str, draw: int) -> tuple[Rollout, ...]:
        """The latest attempt of each stored member in the draw's current round, in member order."""
        ...

    async def counts(self) -> Mapping[str, Mapping[GroupStatus, int]]:
        """Groups by task set and status: the conservation table (R3)."""
        ...
