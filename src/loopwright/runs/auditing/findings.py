"""What an audit can find. A clean run has none of these."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from loopwright.buffer.archive import GroupKey


class FindingKind(StrEnum):
    LOST = "lost"
    """A group or rollout is gone, or will never be worked on, or a train step has no groups."""
    DOUBLED = "doubled"
    """Something counts twice in the present lineage: a group was trained twice, or a rollout was stored twice."""
    STALE = "stale"
    """Trained against the staleness policy that the run had."""
    DAMAGED = "damaged"
    """Ledger, trail and tokens contradict each other, or cannot be read."""


class Finding(NamedTuple):
    """One thing that is wrong; `where` names the group, the rollout or the train step."""

    kind: FindingKind
    where: str
    what: str


def group_name(group: GroupKey) -> str:
    """The name as in `loopwright show`. The round is added if the draw was made again."""
    task_set, draw, round = group
    return f"{task_set}/{draw:06d}" + (f" (round {round})" if round else "")
