"""The alarms of a run, with links to the trajectories behind them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwright.errors import RefusedError, RunError
from loopwright.runs.alarm_facts import equal_groups, examples, latest_end, unfinished
from loopwright.runs.alarms import Alarm, AlarmKind, UnfinishedStep, Vitals, alarms
from loopwright.runs.step_groups import Wanted, has_any
from loopwright.runs.trends import Series
from loopwright.types import FailureCause, GroupStatus
from loopwright.ui.answers import cut
from loopwright.ui.run_answers import stored_config
from loopwright.ui.run_view import RunView

LOOKED_AT = (
    "learner/mismatch_mean",
    "response/tokens",
    "response/truncated",
    "reward/mean",
    "groups/trained",
    "groups/filtered",
    "groups/failed",
    "groups/size",
    *(f"failures/{cause}" for cause in FailureCause),
)
"""Metrics that the rules need, of the run and of each of its task sets."""
SIGNAL_STEPS = 30
"""How many steps are searched for groups with equal rewards."""
MOST = 1 << 53
LEFT_OUT = {AlarmKind.FAILURES: GroupStatus.FAILED, AlarmKind.NO_SIGNAL: GroupStatus.FILTERED}


def alarms_of(view: RunView, alive: bool) -> dict[str, Any]:
    """All alarms as they are now, and the `problem` if the run's database cannot be read: then these are the alarms of
    the metrics alone."""
    return view.remembered(("alarms", alive), lambda: _alarms(view, alive))


def _alarms(view: RunView, alive: bool) -> dict[str, Any]:
    problem, stored = None, Stored()
    if view.inside(view.folder.rollouts).is_file():
        try:
            first = max(1, view.progress()["step"] - SIGNAL_STEPS)
            ended = latest_end(view.database) if len(view.times()) < 2 else 0.0
            stored = Stored(equal_groups(view.database, first), unfinished(view.database), ended)
        except RunError as error:
            problem = cut(f"{error.message}; the alarms that need it are missing")
    return {"alarms": [_told(view, one) for one in alarms(_vitals(view, alive, stored))], "problem": problem}


@dataclass(frozen=True, slots=True)
class Stored:
    """What the rules need of the database. `ended` is when a rollout ended last, if there is no usual step yet."""

    equal: Mapping[str, Series] = field(default_factory=dict)
    unfinished: Mapping[str, UnfinishedStep] = field(default_factory=dict)
    ended: float = 0.0


def _vitals(view: RunView, alive: bool, stored: Stored) -> Vitals:
    known = set(view.metric_names())
    task_sets = sorted(name.removeprefix("groups/trained/") for name in known if name.startswith("groups/trained/"))
    names = [name + end for name in LOOKED_AT for end in ("", *(f"/{one}" for one in task_sets))]
    series = {name: dict(view.series(name)) for name in names if name in known}
    step = view.progress()["step"]
    lost = list(_lost(view, step))
    opened, times = view.opened_at() if alive else 0.0, view.times()
    samples, steps = _setting(view, "rollout", "samples_per_task"), _setting(view, "trainer", "steps")
    return Vitals(
        series,
        times,
        time.time(),
        alive,
        step,
        lost,
        stored.equal,
        tuple(task_sets),
        samples=samples,
        opened=opened,
        ended=max(view.event_written_at(), stored.ended) if len(times) < 2 else 0.0,
        # What a finished run has made ahead belongs to no step.
        unfinished={} if steps and step >= steps else stored.unfinished,
    )


def _setting(view: RunView, section: str, name: str) -> int:
    """A positive whole number of the config: 0 if the config does not have it."""
    settings = stored_config(view).get(section)
    found = settings.get(name) if isinstance(settings, Mapping) else None
    return found if isinstance(found, int) and 0 < found < MOST else 0


def _lost(view: RunView, last: int) -> Iterator[int]:
    """The step of each engine that was lost, without those of undone steps: they were over before the step before them
    was made again."""
    time_of = view.time_of()
    for event in view.engine_events():
        step = event["step"]
        if event["name"] == "engine_lost" and step <= last + 1 and not event["end"] < time_of.get(step - 1, 0.0):
            yield step


def _told(view: RunView, alarm: Alarm) -> dict[str, Any]:
    searched = max(1, view.progress()["step"] - SIGNAL_STEPS)
    # Where the search for equal rewards began, nobody looked at the steps before.
    is_vague = alarm.kind is AlarmKind.NO_SIGNAL and 1 < searched == alarm.since
    return {
        "kind": alarm.kind,
        "severe": alarm.severe,
        "title": cut(alarm.title),
        "numbers": alarm.numbers + (f", since step {alarm.since} or earlier" if is_vague else ""),
        "rule": alarm.rule,
        "since": None if is_vague else alarm.since,
        "task_set": cut(alarm.task_set),
        "links": list(_links(view, alarm)),
    }


def _links(view: RunView, alarm: Alarm) -> Iterable[dict[str, Any]]:
    """Where to look: rollouts that show it, and the step with the filter that leaves them."""
    try:
        found = examples(view.database, alarm)
    # A run may stand still before it has stored anything.
    except (RunError, RefusedError):
        found = ()
    for one in found:
        yield {"key": str(one.key), "round": one.round}
    step = alarm.step if alarm.step is not None else next((one.step for one in found if one.step is not None), None)
    if step is not None:
        status, cause = _filter(view, alarm, step)
        yield {"step": step, "status": status, "cause": cause, "task_set": cut(alarm.task_set)}


def _filter(view: RunView, alarm: Alarm, step: int) -> tuple[GroupStatus | None, FailureCause | None]:
    """The narrowest filter that leaves groups of that step: groups are also trained without their failed members, and
    with rewards that are all equal."""
    filters = ((LEFT_OUT.get(alarm.kind), alarm.cause), (None, alarm.cause))
    try:
        for status, cause in filters:
            if has_any(view.database, step, Wanted(alarm.task_set, cause=cause, status=status)):
                return status, cause
    except (RunError, RefusedError):
        pass
    return None, None
