"""The groups of one train step for people who look at it: what was trained, and what was left out meanwhile.

Filters and pages are SQL, so an answer is small however large the step is. Nothing here reads tokens.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from loopwright.buffer.codec import decode_reward
from loopwright.buffer.storage.schema import snapshot
from loopwright.runs.cursor import Cursor, edition_of
from loopwright.types import Failed, FailureCause, GroupStatus, Scored

LATEST = (
    "attempt = (SELECT max(attempt) FROM rollouts AS later WHERE (later.task_set, later.draw, later.round,"
    " later.member) = (r.task_set, r.draw, r.round, r.member))"
)
VALUE = "CASE json_extract(r.reward, '$.kind') WHEN 'scored' THEN json_extract(r.reward, '$.value') END"
CAUSE = "CASE json_extract(r.reward, '$.kind') WHEN 'failed' THEN json_extract(r.reward, '$.cause') END"
LEFT_OUT = (GroupStatus.FILTERED, GroupStatus.FAILED, GroupStatus.EXPIRED, GroupStatus.ROLLED_BACK)
BINS = 10


class StepWhat(NamedTuple):
    """One trained step: how many groups and rollouts, and when the last of its groups was consumed."""

    step: int
    groups: int
    at: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show of a step. `low` and `high` bound the reward; the upper bound is part of it."""

    task_set: str | None = None
    low: float | None = None
    high: float | None = None
    cause: FailureCause | None = None
    status: GroupStatus | None = None
    """Groups that were left out while the step was made, instead of the trained ones."""

    def members(self) -> tuple[str, list[Any]]:
        """SQL that a member has to satisfy, and its parameters. A group is shown if one of its members does."""
        parts, values = list[str](), list[Any]()
        if self.low is not None:
            parts.append(f"({VALUE}) >= ?")
            values.append(self.low)
        if self.high is not None:
            parts.append(f"({VALUE}) <= ?")
            values.append(self.high)
        if self.cause is not None:
            parts.append(f"({CAUSE}) = ?")
            values.append(self.cause.value)
        return " AND ".join(parts), values


class GroupMember(NamedTuple):
    """The latest attempt at one member."""

    member: int
    attempt: int
    reward: float | None
    cause: str | None
    error: str | None
    stop: str | None
    agent_seconds: float
    judge_seconds: float
    oldest: int | None
    advantage: float | None
    """Of its train step. None: it was not trained, or this was not stored."""
    loss_terms: float | None
    """The sum of the absolute shares of the loss of its tokens, if they were stored."""
    worker: str | None
    engines: str | None
    held_seconds: float | None
    judged_at: float | None


@dataclass(frozen=True, slots=True)
class GroupAtStep:
    """One group, with the latest attempt at each member."""

    task_set: str
    draw: int
    round: int
    task: str
    status: str
    version: int
    why: str | None
    """Why it was filtered or failed."""
    members: tuple[GroupMember, ...]


class Bin(NamedTuple):
    """Rewards from `low` to `high`, and how many members have one."""

    low: float
    high: float
    members: int


@dataclass(frozen=True, slots=True)
class StepPage:
    """A page of groups. `total` counts all that match, `histogram` the rewards of the whole step."""

    groups: tuple[GroupAtStep, ...]
    total: int
    histogram: tuple[Bin, ...]
    causes: dict[str, int]
    task_sets: tuple[str, ...]
    left_out: dict[str, int]
    loss_terms: float | None
    """The sum of the absolute shares of the loss of all tokens of the step, if they were stored."""


@dataclass(frozen=True, slots=True)
class StepList:
    """Trained steps, the latest first. `next` is where the list goes on; None at its end."""

    steps: tuple[StepWhat, ...]
    edition: str
    next: Cursor | None


def trained_steps(database: Path, *, cursor: Cursor | None = None, most: int = 200) -> StepList | None:
    """The trained steps, the latest first. None if the cursor is of another lineage: start again."""
    with snapshot(database) as db:
        edition = edition_of(db, database)
        if cursor is not None and cursor.edition != edition:
            return None
        found = db.execute(
            "SELECT step, count(*),"
            " (SELECT max(at) FROM trail AS t WHERE t.event = 'consumed' AND t.step = groups.step)"
            " FROM groups WHERE step IS NOT NULL AND step <= ? GROUP BY step ORDER BY step DESC LIMIT ?",
            (1 << 62 if cursor is None else cursor.step, most + 1),
        ).fetchall()
        steps = tuple(StepWhat(step, groups, at or 0.0) for step, groups, at in found[:most])
        return StepList(steps, edition, Cursor(edition, found[most][0]) if len(found) > most else None)


def step_page(database: Path, step: int, wanted: Wanted, *, offset: int = 0, most: int = 64) -> StepPage:
    """A page of the groups of one step."""
    with snapshot(database) as db:
        places = _places(db, step)
        chosen, values = _chosen(step, places, wanted)
        (total,) = db.execute(f"SELECT count(*) FROM groups AS g WHERE {chosen}", values).fetchone()
        rows = db.execute(
            "SELECT task_set, draw, round, json_extract(task, '$.id'), status, version, why FROM groups AS g"
            f" WHERE {chosen} ORDER BY task_set, draw, round LIMIT ? OFFSET ?",
            (*values, most, offset),
        ).fetchall()
        groups = tuple(
            GroupAtStep(
                task_set, draw, round, str(task), status, version, why, tuple(summaries_of(db, task_set, draw, round))
            )
            for task_set, draw, round, task, status, version, why in rows
        )
        return StepPage(
            groups,
            total,
            _histogram(db, step),
            _causes(db, step),
            tuple(
                name
                for (name,) in db.execute("SELECT DISTINCT task_set FROM groups WHERE step = ? ORDER BY 1", (step,))
            ),
            _left_out(db, places),
            step_terms(db, step),
        )


def is_known_step(database: Path, step: int) -> bool:
    """Whether the step was trained, or is the one under way."""
    with snapshot(database) as db:
        (last,) = db.execute("SELECT coalesce(max(step), 0) FROM groups").fetchone()
        found = db.execute("SELECT 1 FROM groups WHERE step = ? LIMIT 1", (step,)).fetchone()
        return found is not None or step == last + 1


def has_any(database: Path, step: int, wanted: Wanted) -> bool:
    """Whether a page of the step with this filter shows a group."""
    with snapshot(database) as db:
        chosen, values = _chosen(step, _places(db, step), wanted)
        return db.execute(f"SELECT 1 FROM groups AS g WHERE {chosen} LIMIT 1", values).fetchone() is not None


def summaries_of(db: sqlite3.Connection, task_set: str, draw: int, round: int) -> Iterator[GroupMember]:
    for member, attempt, reward, *rest in db.execute(
        "SELECT member, attempt, reward, stop, agent_seconds, judge_seconds, oldest, advantage, loss_terms, worker,"
        " engines, held_seconds, judged_at"
        " FROM rollouts AS r LEFT JOIN trained USING (task_set, draw, round, member, attempt)"
        f" WHERE (task_set, draw, round) = (?, ?, ?) AND {LATEST} ORDER BY member",
        (task_set, draw, round),
    ):
        said = decode_reward(reward)
        failure = said if isinstance(said, Failed) else None
        yield GroupMember(
            member,
            attempt,
            said.value if isinstance(said, Scored) else None,
            failure.cause.value if failure else None,
            f"{failure.error}: {failure.detail}"[:300] if failure else None,
            *rest,
        )


def step_terms(db: sqlite3.Connection, step: int) -> float | None:
    """The sum of the absolute shares of the loss of all tokens of a step, if they were stored."""
    (total,) = db.execute(
        "SELECT sum(loss_terms) FROM groups JOIN trained USING (task_set, draw, round) WHERE step = ?", (step,)
    ).fetchone()
    return None if total is None else float(total)


def _places(db: sqlite3.Connection, step: int) -> tuple[int, int]:
    """The part of the trail in which the step was made: from behind the one before it to its own end."""
    return place_of_step(db, step - 1) or 0, place_of_step(db, step) or newest_place(db)


def place_of_step(db: sqlite3.Connection, step: int) -> int | None:
    """Where the trail says that the step consumed its last group, in the latest lineage that did."""
    (place,) = db.execute("SELECT max(place) FROM trail WHERE event = 'consumed' AND step = ?", (step,)).fetchone()
    return None if place is None else int(place)


def newest_place(db: sqlite3.Connection) -> int:
    (place,) = db.execute("SELECT coalesce(max(place), 0) FROM trail").fetchone()
    return int(place)


def _chosen(step: int, places: tuple[int, int], wanted: Wanted) -> tuple[str, Sequence[Any]]:
    if wanted.status is None or wanted.status is GroupStatus.CONSUMED:
        parts, values = ["g.step = ?"], list[Any]([step])
    else:
        parts = [
            "g.status = ?",
            "(g.task_set, g.draw, g.round) IN (SELECT task_set, draw, round FROM trail WHERE place > ? AND place <= ?"
            " AND event = ?)",
        ]
        values = [wanted.status.value, *places, wanted.status.value]
    if wanted.task_set is not None:
        parts.append("g.task_set = ?")
        values.append(wanted.task_set)
    of_members, more = wanted.members()
    if of_members:
        parts.append(
            "EXISTS (SELECT 1 FROM rollouts AS r WHERE (r.task_set, r.draw, r.round) = (g.task_set, g.draw, g.round)"
            f" AND {of_members})"
        )
        values += more
    return " AND ".join(parts), values


_OF_STEP = (
    "FROM groups AS g JOIN rollouts AS r USING (task_set, draw, round)"
    f" WHERE g.step = ? AND {LATEST.replace('attempt =', 'r.attempt =', 1)}"
)


def _histogram(db: sqlite3.Connection, step: int) -> tuple[Bin, ...]:
    """The rewards in bins of equal width; if there are few different ones, a bin for each."""
    found = db.execute(f"SELECT {VALUE} AS value, count(*) {_OF_STEP} GROUP BY 1 ORDER BY 1", (step,)).fetchall()
    counts = [(float(value), int(count)) for value, count in found if isinstance(value, int | float)]
    low, high = (counts[0][0], counts[-1][0]) if counts else (0.0, 0.0)
    width = (high - low) / BINS
    if len(counts) <= BINS or not 0 < width < math.inf:
        return tuple(Bin(value, value, count) for value, count in counts)
    sums = [0] * BINS
    for value, count in counts:
        sums[min(BINS - 1, int((value - low) / width))] += count
    return tuple(Bin(low + n * width, high if n == BINS - 1 else low + (n + 1) * width, sums[n]) for n in range(BINS))


def _causes(db: sqlite3.Connection, step: int) -> dict[str, int]:
    """Failures of the step's groups by cause, with the attempts that were repeated."""
    found = db.execute(
        f"SELECT {CAUSE} AS cause, count(*) FROM groups AS g JOIN rollouts AS r USING (task_set, draw, round)"
        " WHERE g.step = ? GROUP BY 1",
        (step,),
    )
    return {cause: count for cause, count in found if cause is not None}


def _left_out(db: sqlite3.Connection, places: tuple[int, int]) -> dict[str, int]:
    """Groups that ended untrained while the step was made, by status."""
    marks = ", ".join("?" * len(LEFT_OUT))
    found = db.execute(
        "SELECT g.status, count(DISTINCT g.task_set || '/' || g.draw || '/' || g.round) FROM trail AS t"
        " JOIN groups AS g USING (task_set, draw, round)"
        f" WHERE t.place > ? AND t.place <= ? AND t.member IS NULL AND t.event = g.status AND g.status IN ({marks})"
        " GROUP BY 1",
        (*places, *(status.value for status in LEFT_OUT)),
    )
    return dict(found.fetchall())
