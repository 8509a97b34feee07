"""The audit of a run (R3, D1). Everything is read in one snapshot, so the run may write at the same time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loopwright.buffer.archive import Archive, GroupKey
from loopwright.buffer.storage.schema import snapshot
from loopwright.runs.auditing.ageing import check_trained, check_untrained
from loopwright.runs.auditing.comparing import (
    LedgerRow,
    compare_draws,
    compare_groups,
    compare_rollouts,
    compare_steps,
)
from loopwright.runs.auditing.computed import check_computed
from loopwright.runs.auditing.findings import Finding
from loopwright.runs.auditing.lives import Lives, TrailRow
from loopwright.types import GroupStatus


class Count(NamedTuple):
    groups: int
    members: int


NOWHERE = dict.fromkeys(GroupStatus, Count(0, 0))


@dataclass(frozen=True, slots=True)
class Conservation:
    """One task set: how many groups were drawn according to the trail, and their statuses according to the ledger. The
    two sides of R3 are equal unless something is lost, doubled or damaged."""

    sampled: Count
    standing: Mapping[GroupStatus, Count]

    @property
    def total(self) -> Count:
        return Count(*(sum(count) for count in zip(*self.standing.values(), strict=True)))


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit. `lineages` counts how often the run was opened."""

    task_sets: Mapping[str, Conservation]
    lineages: int
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        return not self.findings


def audit(path: Path) -> Audit:
    """Audit the database at `path`."""
    with snapshot(path) as db:
        lives = Lives.of(_trail(db))
        rows = _groups(db)
        archive = Archive.beside(path)
        opened_at = [step for (step,) in db.execute("SELECT step FROM lineages ORDER BY lineage")]
        findings = [
            *lives.findings,
            *compare_groups(rows, lives.groups),
            *compare_rollouts(db, rows, lives.groups),
            *compare_draws(rows),
            *compare_steps(rows, opened_at),
            *check_trained(db, archive, rows, lives.groups),
            *check_untrained(db, archive),
            *check_computed(db, archive),
        ]
        return Audit(_conservation(db), len(opened_at), tuple(findings))


def standing(path: Path) -> dict[str, dict[GroupStatus, Count]]:
    """Where the groups of each task set stand, without checking anything."""
    with snapshot(path) as db:
        return _standing(db)


def conservation(path: Path) -> dict[str, Conservation]:
    """Both sides of R3 for each task set, without checking anything else."""
    with snapshot(path) as db:
        return _conservation(db)


def _trail(db: sqlite3.Connection) -> Iterator[TrailRow]:
    return map(TrailRow._make, db.execute(f"SELECT {', '.join(TrailRow._fields)} FROM trail ORDER BY place"))


def _groups(db: sqlite3.Connection) -> dict[GroupKey, LedgerRow]:
    found = db.execute("SELECT task_set, draw, round, status, step, expiries, task FROM groups ORDER BY 1, 2, 3")
    return {
        (task_set, draw, round): LedgerRow(status, step, expiries, task)
        for task_set, draw, round, status, step, expiries, task in found
    }


def _conservation(db: sqlite3.Connection) -> dict[str, Conservation]:
    sampled, standing = _sampled(db), _standing(db)
    return {
        name: Conservation(sampled.get(name, Count(0, 0)), standing.get(name, dict(NOWHERE)))
        for name in sorted(sampled.keys() | standing.keys())
    }


def _sampled(db: sqlite3.Connection) -> dict[str, Count]:
    """What was drawn, and the members of which something was stored, by the trail alone."""
    groups = dict(db.execute("SELECT task_set, count(*) FROM trail WHERE event = 'drawn' GROUP BY 1").fetchall())
    members = dict(
        db.execute(
            "SELECT task_set, count(*) FROM (SELECT DISTINCT task_set, draw, round, member FROM trail"
            " WHERE event IN ('stored', 'interrupted')) GROUP BY 1"
        ).fetchall()
    )
    return {name: Count(groups.get(name, 0), members.get(name, 0)) for name in groups.keys() | members.keys()}


def _standing(db: sqlite3.Connection) -> dict[str, dict[GroupStatus, Count]]:
    table: dict[str, dict[GroupStatus, Count]] = {}
    for task_set, status, groups, members in db.execute(
        "SELECT task_set, status, count(*), sum(members) FROM ("
        " SELECT g.task_set, g.status, (SELECT count(DISTINCT member) FROM rollouts AS r"
        "  WHERE (r.task_set, r.draw, r.round) = (g.task_set, g.draw, g.round)) AS members FROM groups AS g"
        ") GROUP BY 1, 2"
    ):
        if status in set(GroupStatus):
            table.setdefault(task_set, dict(NOWHERE))[GroupStatus(status)] = Count(groups, members)
    return table
