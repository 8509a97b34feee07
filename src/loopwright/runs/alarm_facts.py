"""What alarms need of a run's database: groups whose rewards are all equal, and the rollouts that show an alarm."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from loopwright.buffer.storage.schema import snapshot
from loopwright.runs.alarms import Alarm, AlarmKind, UnfinishedStep
from loopwright.runs.step_groups import CAUSE, VALUE, place_of_step
from loopwright.types import FailureCause, RolloutKey

LATEST_DRAWS = 500
"""Failures are looked for among so many of a task set's latest draws, because a run may have millions of rollouts."""


_EQUAL = (
    f"(SELECT min({VALUE}) = max({VALUE}) FROM rollouts AS r"
    " WHERE (r.task_set, r.draw, r.round) = (g.task_set, g.draw, g.round))"
)
"""Whether all scored members of a group have the same reward."""


_ENDED = (
    "SELECT task_set, draw, round FROM trail WHERE place > ? AND member IS NULL AND event IN"
    " ('completed', 'filtered', 'failed') AND lineage = (SELECT coalesce(max(lineage), 0) FROM lineages)"
)
"""Groups that ended behind a place of the trail, in the present lineage."""


class AlarmExample(NamedTuple):
    """One rollout that shows an alarm."""

    key: RolloutKey
    round: int
    step: int | None


def equal_groups(database: Path, first: int) -> dict[str, dict[int, float]]:
    """How many trained groups have rewards that are all equal, by task set and step, from step `first` on."""
    found: dict[str, dict[int, float]] = {}
    with snapshot(database) as db:
        for task_set, step, groups in db.execute(
            "SELECT task_set, step, sum(lowest = highest) FROM ("
            f" SELECT g.task_set, g.step, min({VALUE}) AS lowest, max({VALUE}) AS highest"
            " FROM groups AS g JOIN rollouts AS r USING (task_set, draw, round)"
            " WHERE g.step >= ? GROUP BY g.task_set, g.draw, g.round) GROUP BY 1, 2",
            (first,),
        ):
            found.setdefault(task_set, {})[step] = float(groups or 0)
    return found


def unfinished(database: Path) -> dict[str, UnfinishedStep]:
    """What ended since the last trained step, by task set. What an earlier lineage did is not counted: it may belong to
    an undone step."""
    failed: dict[str, dict[FailureCause, int]] = {}
    attempts = Counter[str]()
    with snapshot(database) as db:
        (step,) = db.execute("SELECT coalesce(max(step), 0) FROM groups").fetchone()
        for task_set, cause, count in db.execute(
            f"SELECT g.task_set, {CAUSE} AS cause, count(*) FROM groups AS g"
            " JOIN rollouts AS r USING (task_set, draw, round)"
            f" WHERE (g.task_set, g.draw, g.round) IN ({_ENDED}) AND g.status IN ('completed', 'filtered', 'failed')"
            " GROUP BY 1, 2",
            (place_of_step(db, step) or 0,),
        ):
            attempts[task_set] += count
            if cause in tuple(FailureCause):
                failed.setdefault(task_set, {})[FailureCause(cause)] = count
    return {task_set: UnfinishedStep(count, failed.get(task_set, {})) for task_set, count in attempts.items()}


def latest_end(database: Path) -> float:
    """When an attempt or a group ended last: 0 if none has. That one was begun does not count."""
    with snapshot(database) as db:
        (at,) = db.execute("SELECT max(at) FROM trail WHERE event NOT IN ('drawn', 'taken_up')").fetchone()
        return float(at or 0.0)


def examples(database: Path, alarm: Alarm, most: int = 3) -> tuple[AlarmExample, ...]:
    """Rollouts that show the alarm, the clearest or the latest first. Empty if none does alone."""
    with snapshot(database) as db:
        chosen, order, values = _chosen(db, alarm)
        if not chosen:
            return ()
        if alarm.task_set is not None:
            chosen, values = f"{chosen} AND g.task_set = ?", [*values, alarm.task_set]
        rows = db.execute(
            "SELECT task_set, draw, r.member, r.attempt, round, g.step FROM groups AS g"
            f" JOIN rollouts AS r USING (task_set, draw, round) WHERE {chosen} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        return tuple(AlarmExample(RolloutKey(name, *numbers), round, step) for name, *numbers, round, step in rows)


def _chosen(db: sqlite3.Connection, alarm: Alarm) -> tuple[str, str, list[Any]]:
    """Conditions, order and parameters. No conditions: no rollout shows it alone."""
    match alarm.kind:
        case AlarmKind.FAILURES:
            latest, values = _latest(db, alarm)
            return f"{latest} AND ({CAUSE}) = ?", "draw DESC, round DESC, r.member", [*values, alarm.cause]
        case AlarmKind.NO_SIGNAL:
            latest, values = _latest(db, alarm)
            shows = f"(g.status = 'filtered' OR g.status = 'consumed' AND {_EQUAL})"
            return f"{latest} AND r.member = 0 AND {shows}", "draw DESC, round DESC", values
        case AlarmKind.TRUNCATED:
            return "g.step = ? AND r.stop = 'budget'", "draw, r.member", [alarm.step]
        case AlarmKind.LENGTHS:
            length = "coalesce(length(r.chains), length(r.messages), 0)"
            way = "DESC" if alarm.rose else "ASC"
            return "g.step = ?", f"{length} {way}, r.agent_seconds {way}", [alarm.step]
        case AlarmKind.REWARD:
            return f"g.step = ? AND ({VALUE}) IS NOT NULL", f"({VALUE}) {'DESC' if alarm.rose else 'ASC'}", [alarm.step]
        case _:
            return "", "", []


def _latest(db: sqlite3.Connection, alarm: Alarm) -> tuple[str, list[Any]]:
    """Of each task set only the latest draws."""
    found = db.execute("SELECT task_set, max(draw) FROM groups GROUP BY 1").fetchall()
    bounds = [(name, newest - LATEST_DRAWS) for name, newest in found if alarm.task_set in (None, name)]
    chosen = " OR ".join(["(g.task_set = ? AND g.draw > ?)"] * len(bounds))
    return f"({chosen or 'false'})", [value for bound in bounds for value in bound]
