"""One stored rollout with everything that belongs to it: its group's other members, and where its chains part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loopwright.buffer.archive import Archive, Parcel
from loopwright.buffer.codec import decode_task
from loopwright.buffer.rows import RolloutRow, from_row
from loopwright.buffer.storage.schema import ROLLOUT_COLUMNS, snapshot
from loopwright.runs.step_groups import GroupMember, summaries_of
from loopwright.runs.trained_tokens import TrainedTokens, read_trained
from loopwright.types import GroupStatus, Rollout, RolloutKey


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """A rollout, and the group that it is a member of."""

    rollout: Rollout
    round: int
    status: GroupStatus
    step: int | None
    members: tuple[GroupMember, ...]
    attempts: tuple[int, ...]
    why: str | None = None
    """Why the group was filtered or failed."""
    trained: TrainedTokens | None = None
    """What its train step computed of it. None: it was not trained, or this was not stored."""


def read_rollout(database: Path, archive: Archive, key: RolloutKey, round: int | None = None) -> RolloutPage | None:
    """The rollout of the latest round, or of the given one. None if there is none."""
    with snapshot(database) as db:
        found = db.execute(
            f"SELECT round, step, archived, status, why, task, {ROLLOUT_COLUMNS}"
            " FROM rollouts JOIN groups USING (task_set, draw, round)"
            " WHERE task_set = ? AND draw = ? AND member = ? AND attempt = ? AND round = coalesce(?, round)"
            " ORDER BY round DESC LIMIT 1",
            (key.task_set, key.draw, key.member, key.attempt, round),
        ).fetchone()
        if found is None:
            return None
        of_round, step, archived, status, why, task, *columns = found
        group = (key.task_set, key.draw, of_round)
        row = archive.restored(group, Parcel.of(step, archived), RolloutRow._make(columns))
        attempts = db.execute(
            "SELECT attempt FROM rollouts WHERE (task_set, draw, round, member) = (?, ?, ?, ?) ORDER BY attempt",
            (*group, key.member),
        )
        return RolloutPage(
            from_row(row, key.task_set, key.draw, decode_task(task)),
            of_round,
            GroupStatus(status),
            step,
            tuple(summaries_of(db, *group)),
            tuple(attempt for (attempt,) in attempts.fetchall()),
            why,
            None if step is None else read_trained(db, archive, group, key, step),
        )
