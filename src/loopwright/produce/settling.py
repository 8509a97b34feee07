"""How the making of a group ends: COMPLETED, FILTERED, FAILED or ABORTED, exactly one of them (R3)."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.produce.filling import Filled
from loopwright.produce.filtering import Filter
from loopwright.types import Failed, Group, GroupStatus, Scored


@dataclass(frozen=True, slots=True)
class Ended:
    """A group that nobody works on any more. `failures` says why, when it failed; `seconds` is how long it took since
    it was taken up."""

    group: Group
    status: GroupStatus
    failures: tuple[Failed, ...] = ()
    seconds: float = 0.0


async def end_of(filled: Filled, least: int, chosen_by: Filter | None) -> Ended:
    """What becomes of a group that needs `least` scored members. An interrupted one goes on later."""
    row = filled.started.row
    scored = tuple(member for member in filled.members if isinstance(member.reward, Scored))
    group = Group(row.task_set, row.draw, row.task, scored)
    if filled.was_interrupted:
        return Ended(group, GroupStatus.ABORTED)
    if len(scored) < least:
        failures = tuple(member.reward for member in filled.members if isinstance(member.reward, Failed))
        return Ended(group, GroupStatus.FAILED, failures)
    kept = chosen_by is None or await chosen_by.decide(group)
    if isinstance(kept, Failed):
        return Ended(group, GroupStatus.FAILED, (kept,))
    return Ended(group, GroupStatus.COMPLETED if kept else GroupStatus.FILTERED)
