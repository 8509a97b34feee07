"""Compares the ledger with the trail: every group and every rollout must be in both, with the same status.

Also, every number must have been drawn, only the last round of a draw may count, and every train step must have groups.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from loopwright.buffer.archive import GroupKey
from loopwright.buffer.storage.refusals import DRAWN_AGAIN
from loopwright.runs.auditing.findings import Finding, FindingKind, group_name
from loopwright.runs.auditing.lives import Life
from loopwright.types import StopReason


class LedgerRow(NamedTuple):
    """A group as the ledger has it. The values are not trusted: somebody may have changed the file."""

    status: str
    step: int | None
    expiries: int
    task: str


def compare_groups(rows: Mapping[GroupKey, LedgerRow], lives: Mapping[GroupKey, Life]) -> Iterator[Finding]:
    for group in sorted(rows.keys() | lives.keys()):
        row, life = rows.get(group), lives.get(group, Life())
        if row is None:
            yield Finding(
                FindingKind.LOST, group_name(group), f"it was drawn, is {life.status} by its trail, and is gone"
            )
        elif life.status is None:
            yield Finding(FindingKind.DAMAGED, group_name(group), "nothing says that it was drawn")
        elif (row.status, row.step, row.expiries) != (life.status, life.step, life.expiries):
            yield Finding(
                FindingKind.DAMAGED,
                group_name(group),
                f"it is {_stands(row.status, row.step, row.expiries)}, but by its trail "
                f"{_stands(life.status, life.step, life.expiries)}",
            )


def _stands(status: str, step: int | None, expiries: int) -> str:
    at = "" if step is None else f" at step {step}"
    return f"{status}{at}" + (f" after {expiries} expiries" if expiries else "")


def compare_rollouts(
    db: sqlite3.Connection, rows: Mapping[GroupKey, LedgerRow], lives: Mapping[GroupKey, Life]
) -> Iterator[Finding]:
    expected = {(*group, *place): whole for group, life in lives.items() for place, whole in life.whole.items()}
    for task_set, draw, round, member, attempt, stop in db.execute(
        "SELECT task_set, draw, round, member, attempt, stop FROM rollouts"
    ):
        name = f"{group_name((task_set, draw, round))}/{member:02d}/{attempt}"
        whole = expected.pop((task_set, draw, round, member, attempt), None)
        if whole is None:
            yield Finding(FindingKind.DAMAGED, name, "nothing says that it was stored")
        elif whole == (stop == StopReason.ABORTED):
            yield Finding(FindingKind.DAMAGED, name, f"it is {'partial' if whole else 'whole'}, against its trail")
    for task_set, draw, round, member, attempt in sorted(expected):
        if (task_set, draw, round) in rows:
            name = f"{group_name((task_set, draw, round))}/{member:02d}/{attempt}"
            yield Finding(FindingKind.LOST, name, "it was stored and is gone")


def compare_draws(rows: Mapping[GroupKey, LedgerRow]) -> Iterator[Finding]:
    """Check that every number was drawn, and that only the last round of a draw counts."""
    last: dict[str, int] = {}
    latest: dict[tuple[str, int], GroupKey] = {}
    for group, row in rows.items():
        task_set, draw, _ = group
        for missing in range(last.get(task_set, -1) + 1, draw):
            yield Finding(FindingKind.LOST, group_name((task_set, missing, 0)), "it was skipped: no group has its task")
        last[task_set] = draw
        earlier = latest.get((task_set, draw))
        if earlier is not None and rows[earlier].status not in DRAWN_AGAIN:
            what = f"it is {rows[earlier].status}, and was drawn again and is {row.status}"
            yield Finding(FindingKind.DOUBLED, group_name(earlier), what)
        latest[task_set, draw] = group


def compare_steps(rows: Mapping[GroupKey, LedgerRow], opened_at: Sequence[int]) -> Iterator[Finding]:
    """Check that every step has groups, from the checkpoint with which the database began. `opened_at` are the steps of
    the checkpoints at which the run was opened, in order. All steps up to the last of them were trained."""
    consumed = {row.step for row in rows.values() if row.step is not None}
    first, last = (opened_at[0], opened_at[-1]) if opened_at else (0, 0)
    for step in range(first + 1, max(last, *consumed, 0) + 1):
        if step not in consumed:
            yield Finding(
                FindingKind.LOST, f"step {step}", "no group is known that it trained: they may be trained again"
            )
