"""Strategies decide which group of a task set starts next, if any. They only decide; others draw, run and count groups.

The order: expired groups, then interrupted ones, then new tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from loopwright.core.admission import has_room, tail_of, window_limit
from loopwright.produce.settings import ProduceSettings
from loopwright.types import ProduceKind


class GroupSource(StrEnum):
    """Where the next group comes from."""

    EXPIRED = "expired"
    ABORTED = "aborted"
    NEW = "new"
    """Draws that were rolled back, then tasks that were never drawn."""


@dataclass(frozen=True, slots=True)
class ProduceContext:
    """All that a strategy may know about its task set at one moment. Numbers are groups."""

    step: int
    """The step whose batch is taken next."""
    target: int
    """Needed for all steps up to `step`."""
    batch: int
    """How many groups are still to be taken for `step`."""
    ahead: int
    """Needed for all steps that the present weights may feed."""
    takes_turns: bool
    """Whether no groups are made while a step is trained: a colocated run."""
    available: int
    """How many were taken so far or are complete."""
    pending: int
    aborted: int
    expired: int
    slot_is_free: bool
    may_look: bool
    """Whether a new task may be drawn. If not, a budget is spent, or will be when earlier groups have ended."""

    @property
    def in_hand(self) -> int:
        """What counts against a limit. An interrupted group is counted already, and may always go on."""
        return self.available + self.pending + self.aborted


class ProduceStrategy(Protocol):
    """One task set's strategy."""

    def begin(self, context: ProduceContext) -> None:
        """`context.step` is taken next."""
        ...

    def choose(self, context: ProduceContext) -> GroupSource | None:
        """Where the next group comes from, or None if none may start. This changes nothing."""
        ...

    def started(self, source: GroupSource) -> None:
        """A group from `source` was started."""
        ...


def strategy_of(kind: ProduceKind, settings: ProduceSettings) -> ProduceStrategy:
    """A strategy for one task set."""
    if kind is ProduceKind.SYNC:
        return SyncStrategy()
    at_least = settings.tail_batch if isinstance(settings.tail_batch, int) else None
    return AsyncStrategy(settings.over_sample, at_least)


class SyncStrategy:
    """Makes the groups that the next step needs, and no more. In a disaggregated run, it makes those that are needed
    before there are newer weights."""

    def begin(self, context: ProduceContext) -> None: ...

    def choose(self, context: ProduceContext) -> GroupSource | None:
        return _first(context, context.target if context.takes_turns else context.ahead, with_expired=True)

    def started(self, source: GroupSource) -> None: ...


class AsyncStrategy:
    """Makes groups ahead of their step, as far as the horizon reaches. In a colocated run it makes the batch and
    `over_sample` times as many groups more.

    Expired groups are started before others. With `tail_batch`, they wait until there are that many; then they are
    started before others in one step, which does not oversample.
    """

    def __init__(self, over_sample: float = 0.0, tail_batch: int | None = None) -> None:
        self._over_sample = over_sample
        self._tail_batch = tail_batch
        self._tail_left = 0
        self._is_tail_step = False

    def begin(self, context: ProduceContext) -> None:
        if self._tail_batch is not None and not self._tail_left:
            self._tail_left = tail_of(context.expired, context.batch, self._tail_batch)
        self._is_tail_step = self._tail_left > 0

    def choose(self, context: ProduceContext) -> GroupSource | None:
        return _first(context, self._limit(context), with_expired=self._tail_batch is None or self._tail_left > 0)

    def _limit(self, context: ProduceContext) -> int:
        if not context.takes_turns:
            return context.ahead
        over_sample = 0.0 if self._is_tail_step else self._over_sample
        return window_limit(context.target, context.batch, over_sample, context.ahead)

    def started(self, source: GroupSource) -> None:
        if source is GroupSource.EXPIRED:
            self._tail_left = max(0, self._tail_left - 1)


def _first(context: ProduceContext, limit: int, *, with_expired: bool) -> GroupSource | None:
    """The first source, in the order above, that has a group, within `limit`. Interrupted groups are counted
    already."""
    has_place = has_room(context.in_hand, limit)
    if not context.slot_is_free:
        return None
    if has_place and with_expired and context.expired:
        return GroupSource.EXPIRED
    if context.aborted:
        return GroupSource.ABORTED
    return GroupSource.NEW if has_place and context.may_look else None
