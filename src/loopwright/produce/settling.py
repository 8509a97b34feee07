"""How a drawn group ends: COMPLETED, FILTERED or FAILED, exactly one of them (R3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.ports import GroupRow
from loopwright.produce.filtering import Filter
from loopwright.types import Failed, Group, GroupStatus, Rollout, Scored


@dataclass(frozen=True, slots=True)
class Ended:
    """A group that is through. `failures` says why, when it failed."""

    group: Group
    status: GroupStatus
    failures: tuple[Failed, ...] = ()


def end_of(row: GroupRow, members: Sequence[Rollout], least: int, chosen_by: Filter | None) -> Ended:
    """What becomes of a group that needs `least` scored members."""
    scored = tuple(member for member in members if isinstance(member.reward, Scored))
    group = Group(row.task_set, row.draw, row.task, scored)
    if len(scored) < least:
        failures = tuple(member.reward for member in members if isinstance(member.reward, Failed))
        return Ended(group, GroupStatus.FAILED, failures)
    kept = chosen_by is None or chosen_by.decide(group)
    if isinstance(kept, Failed):
        return Ended(group, GroupStatus.FAILED, (kept,))
    return Ended(group, GroupStatus.COMPLETED if kept else GroupStatus.FILTERED)
