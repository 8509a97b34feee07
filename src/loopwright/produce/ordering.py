"""Groups that end, in the order in which they were started.

What fails at once ends before what takes its time. Counted as they end, a few bad tasks among many slow ones would look
like a row of failures.
"""

from __future__ import annotations

from collections import Counter

from loopwright.produce.settling import Ended
from loopwright.types import GroupStatus


class InOrder:
    """The groups of one task set that are under way, and those that ended before their turn."""

    def __init__(self) -> None:
        self._started: dict[int, Ended | None] = {}
        """By draw, in the order of their start; None while they are under way."""
        self._early: Counter[GroupStatus] = Counter()

    @property
    def is_busy(self) -> bool:
        """Whether a group is under way."""
        return bool(self._started)

    def start(self, draw: int) -> None:
        """A group is started, or goes on after an interruption."""
        self._started[draw] = None

    def end(self, ended: Ended) -> list[Ended]:
        """The groups whose turn has come, now that this one has ended. One that was interrupted keeps its place."""
        if ended.status is GroupStatus.ABORTED:
            return []
        self._started[ended.group.draw] = ended
        self._early[ended.status] += 1
        due = []
        while self._started and (first := self._started[draw := next(iter(self._started))]) is not None:
            del self._started[draw]
            self._early[first.status] -= 1
            due.append(first)
        return due

    def early(self, status: GroupStatus) -> int:
        """Groups that ended as `status`, while one that was started before them is still under way."""
        return self._early[status]
