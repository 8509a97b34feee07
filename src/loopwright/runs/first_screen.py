"""What a person wants to know of a run first: does it run, how far is it, does it learn, what does it wait for, and
what went wrong. It works on a run that goes on, one that was stopped or killed, and one of an earlier version.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loopwright.runs.alarms import stall_seconds
from loopwright.runs.auditing.audit import standing
from loopwright.runs.event_index import EventIndex
from loopwright.runs.metric_columns import MetricColumns
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.run_status import StatusNow, read_status

LATEST_STEPS = 20
"""The pace of a run is the mean of so many steps."""
LATEST = ("reward/mean", "response/tokens", "response/truncated", "learner/mismatch_mean", "staleness/mean")
FAILURES = "failures/"


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """`step` of `steps` is the last that was trained. `latest` are metrics of that step. `evaluations` are the first
    and the latest reward of each, with their steps. `failures` counts those of all steps by cause."""

    run: str
    status: StatusNow
    step: int
    steps: int | None
    rewards: tuple[tuple[int, float], ...]
    latest: Mapping[str, float]
    evaluations: Mapping[str, tuple[tuple[int, float], tuple[int, float]]]
    failures: Mapping[str, int]
    conservation: Mapping[str, Mapping[str, int]]
    engines_lost: int
    seconds_per_step: float | None

    @property
    def is_finished(self) -> bool:
        return self.steps is not None and self.step >= self.steps

    @property
    def seconds_left(self) -> float | None:
        """By the pace of the latest steps. None if no pace is known."""
        if self.seconds_per_step is None or self.steps is None:
            return None
        return self.seconds_per_step * max(0, self.steps - self.step)

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "state": self.status.state.value,
            "pid": self.status.pid,
            "status_age": self.status.age,
            "status": self.status.present,
            "ended": None if self.status.ended is None else self.status.ended.as_json(),
            "step": self.step,
            "steps": self.steps,
            "finished": self.is_finished,
            "rewards": self.rewards[-LATEST_STEPS:],
            "latest": dict(self.latest),
            "evaluations": dict(self.evaluations),
            "failures": dict(self.failures),
            "conservation": {name: dict(counts) for name, counts in self.conservation.items()},
            "engines_lost": self.engines_lost,
            "seconds_per_step": self.seconds_per_step,
            "seconds_left": self.seconds_left,
        }


def first_screen(folder: RunFolder) -> FirstScreen:
    metrics, events = MetricColumns(folder.metrics), EventIndex(folder.events)
    metrics.refresh()
    events.refresh()
    latest = {name: series[-1][1] for name in LATEST if (series := metrics.series(name))}
    causes = [name for name in metrics.names if name.startswith(FAILURES)]
    status, trained = read_status(folder), metrics.series("reward/mean")
    lost = [event for event in events.of_engines if event.get("name") == "engine_lost"]
    return FirstScreen(
        run=folder.path.resolve().name,
        status=status,
        step=max((step for step, _ in trained), default=0),
        steps=_steps(folder),
        rewards=tuple(trained),
        latest=latest,
        evaluations=dict(_evaluations(metrics)),
        failures=_failures(metrics, causes),
        conservation=_conservation(folder),
        engines_lost=len(lost),
        seconds_per_step=pace(metrics.times, opened_at(folder)),
    )


def pace(times: Sequence[float], opened: float = 0.0) -> float | None:
    """The mean seconds of a step, by when the latest steps ended: also of the slow ones, with an evaluation or a
    checkpoint. None without two steps.

    A gap in which the run was opened, and one in which a run would stand still, is no step: nobody may have worked
    on it.
    """
    latest = times[-LATEST_STEPS - 1 :]
    gaps = [(before, after - before) for before, after in pairwise(latest) if after > before]
    if not gaps:
        return None
    longest = stall_seconds(statistics.median(seconds for _, seconds in gaps))
    steps = [seconds for before, seconds in gaps if seconds <= longest and not before < opened < before + seconds]
    return statistics.fmean(steps) if steps else None


def opened_at(folder: RunFolder) -> float:
    """When the last process that worked on the run took its lock; 0 if none did."""
    try:
        return folder.lock.stat().st_mtime
    except OSError:
        return 0.0


def _steps(folder: RunFolder) -> int | None:
    trainer = (folder.stored_config() or {}).get("trainer")
    steps = trainer.get("steps") if isinstance(trainer, Mapping) else None
    return steps if isinstance(steps, int) else None


def _evaluations(metrics: MetricColumns) -> Iterator[tuple[str, tuple[tuple[int, float], tuple[int, float]]]]:
    for name in metrics.names:
        if name.startswith("eval/") and name.endswith("/reward") and (series := metrics.series(name)):
            yield name.removeprefix("eval/").removesuffix("/reward"), (series[0], series[-1])


def _failures(metrics: MetricColumns, names: Sequence[str]) -> dict[str, int]:
    counts = {name.removeprefix(FAILURES): int(sum(count for _, count in metrics.series(name))) for name in names}
    return {cause: count for cause, count in counts.items() if count}


def _conservation(folder: RunFolder) -> dict[str, dict[str, int]]:
    """Groups by task set and status (R3)."""
    if not folder.rollouts.is_file():
        return {}
    return {
        name: {status.value: count.groups for status, count in counts.items() if count.groups}
        for name, counts in standing(folder.rollouts).items()
    }
