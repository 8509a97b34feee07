"""What happened to every group and rollout according to the trail alone, and which rows cannot follow one another.

This does not read the ledger, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.buffer.archive import GroupKey
from loopwright.buffer.storage.trail import TrailEvent
from loopwright.runs.auditing.findings import Finding, FindingKind, group_name
from loopwright.types import GroupStatus

P, A, C, E = GroupStatus.PENDING, GroupStatus.ABORTED, GroupStatus.COMPLETED, GroupStatus.EXPIRED
LIVE = frozenset({P, A, C, E, GroupStatus.FILTERED, GroupStatus.FAILED})


class Move(NamedTuple):
    """The statuses in which an event may happen, and the status after it. None is the status before the draw."""

    sources: frozenset[GroupStatus | None]
    target: GroupStatus


MOVES = {
    TrailEvent.DRAWN: Move(frozenset({None}), P),
    # Also from PENDING: the caller was stopped after the commit, before it got the answer, and took it up again.
    TrailEvent.TAKEN_UP: Move(frozenset({A, E, P}), P),
    # Also from COMPLETED: the caller was stopped after the commit, before it got the answer.
    TrailEvent.ABORTED: Move(frozenset({P, C}), A),
    TrailEvent.COMPLETED: Move(frozenset({P}), C),
    TrailEvent.FILTERED: Move(frozenset({P}), GroupStatus.FILTERED),
    TrailEvent.FAILED: Move(frozenset({P}), GroupStatus.FAILED),
    TrailEvent.EXPIRED: Move(frozenset({C}), E),
    TrailEvent.CONSUMED: Move(frozenset({C}), GroupStatus.CONSUMED),
    TrailEvent.RETURNED: Move(frozenset({GroupStatus.CONSUMED}), C),
    TrailEvent.REOPENED: Move(frozenset({GroupStatus.FAILED}), A),
    TrailEvent.ROLLED_BACK: Move(LIVE, GroupStatus.ROLLED_BACK),
    TrailEvent.DISCARDED: Move(LIVE, GroupStatus.DISCARDED),
}


class TrailRow(NamedTuple):
    task_set: str
    draw: int
    round: int
    member: int | None
    attempt: int | None
    event: str
    version: int | None
    step: int | None
    lineage: int

    @property
    def group(self) -> GroupKey:
        return self.task_set, self.draw, self.round


@dataclass(slots=True)
class Life:
    """One group according to its trail. `trained` is the version of its oldest trained token when it was consumed."""

    status: GroupStatus | None = None
    step: int | None = None
    lineage: int = 0
    trained: int | None = None
    expiries: int = 0
    whole: dict[tuple[int, int], bool] = field(default_factory=dict)
    """For each stored member and attempt: whether it was whole, not partial."""


@dataclass(slots=True)
class Lives:
    """All groups in the trail."""

    groups: dict[GroupKey, Life] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @staticmethod
    def of(trail: Iterable[TrailRow]) -> Lives:
        lives = Lives()
        for row in trail:
            life = lives.groups.setdefault(row.group, Life())
            if row.event not in list(TrailEvent):
                lives._find(FindingKind.DAMAGED, row, f"its trail has an unknown event {row.event!r}")
            elif row.member is None:
                lives._group_event(life, row)
            else:
                lives._member_event(life, row, (row.member, row.attempt or 0))
        return lives

    def _group_event(self, life: Life, row: TrailRow) -> None:
        event = TrailEvent(row.event)
        move = MOVES.get(event)
        if move is None or life.status not in move.sources:
            twice = event is TrailEvent.CONSUMED and life.status is GroupStatus.CONSUMED
            kind = FindingKind.DOUBLED if twice else FindingKind.DAMAGED
            before = f"{life.status} at step {life.step}" if life.step is not None else life.status or "nothing"
            at = f" at step {row.step}" if row.step is not None else ""
            self._find(kind, row, f"it was {row.event}{at} after {before}")
        if move is None:
            return
        life.status, life.step, life.lineage = move.target, None, row.lineage
        if event is TrailEvent.CONSUMED:
            life.step, life.trained = row.step, row.version
        life.expiries += event is TrailEvent.EXPIRED

    def _member_event(self, life: Life, row: TrailRow, place: tuple[int, int]) -> None:
        event, was_whole = TrailEvent(row.event), life.whole.get(place)
        if event not in (TrailEvent.STORED, TrailEvent.INTERRUPTED, TrailEvent.JUDGED):
            self._find(FindingKind.DAMAGED, row, f"a rollout cannot be {row.event}")
        elif life.status is not P:
            self._find(FindingKind.DAMAGED, row, f"a rollout was {row.event} when its group was {life.status}")
        elif event is TrailEvent.JUDGED and not was_whole:
            self._find(FindingKind.DAMAGED, row, "it was judged before it was stored")
        elif event is not TrailEvent.JUDGED and was_whole:
            self._find(FindingKind.DOUBLED, row, f"it was {row.event} although it was stored already")
        if event in (TrailEvent.STORED, TrailEvent.INTERRUPTED):
            life.whole[place] = event is TrailEvent.STORED

    def _find(self, kind: FindingKind, row: TrailRow, what: str) -> None:
        place = "" if row.member is None else f"/{row.member:02d}/{row.attempt}"
        self.findings.append(Finding(kind, group_name(row.group) + place, what))
