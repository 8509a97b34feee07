"""Makes the report of a run folder. It only reads the run, so it works while the run is active, and after a crash."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.errors import RunError
from loopwright.runs.durable import write_whole
from loopwright.runs.report.data import PHASES, Comparison, Evaluated, Measure, ReportData, RunSummary, StepRollouts
from loopwright.runs.report.render import render_report
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.console_text import evaluations
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Rollout, TokenDiff

PAIRS = 4
"""How many tasks are shown before and after training, for each task set and mode."""
SAMPLED = 3
"""How many rollouts of one train step are shown."""

Record = Mapping[str, Any]
Metrics = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class EvaluatedTwice:
    """The rollouts of the first and the last evaluation of one task set in one mode. There may be only one
    evaluation."""

    task_set: str
    mode: str
    before: int
    after: int
    old: tuple[Rollout, ...]
    new: tuple[Rollout, ...]


def write_report(folder: RunFolder) -> Path:
    """Write `report.html` atomically, and return its path."""
    write_whole(folder.report, render_report(gather_report(folder)))
    return folder.report


def summarise(folder: RunFolder) -> RunSummary:
    """Read a run's numbers. A run that has just begun has few of them; this is no error."""
    _config(folder)
    return _summary(folder, _evaluated_twice(folder))


def gather_report(folder: RunFolder) -> ReportData:
    """Read everything that the report shows: numbers, settings and a few trajectories."""
    config, evaluated = _config(folder), _evaluated_twice(folder)
    summary = _summary(folder, evaluated)
    return ReportData(
        summary,
        _facts(config),
        folder.config.read_text("utf-8"),
        comparisons=tuple(compare_evaluations(one) for one in evaluated if one.after > one.before),
        samples=tuple(_samples(folder)),
        first_diff=_first_diff(folder, summary),
    )


def _config(folder: RunFolder) -> dict[str, Any]:
    config = folder.stored_config()
    if config is None:
        raise RunError(f"{folder.path} is not the folder of a run", remedy="name the trainer.run_dir of a run")
    return config


def _summary(folder: RunFolder, evaluated: Iterable[EvaluatedTwice]) -> RunSummary:
    metrics = metrics_by_step(read_jsonl(folder.metrics))
    return RunSummary(
        folder=folder.path,
        measure=measure_of(rollout for one in evaluated for rollout in (*one.old, *one.new)),
        steps={step: numbers for step, numbers in metrics.items() if "reward/mean" in numbers},
        evaluations=_scores(metrics),
        phases=_phases(read_jsonl(folder.events)),
        report=folder.report if folder.report.is_file() else None,
        export=folder.export if folder.export.is_dir() else None,
    )


def metrics_by_step(records: Iterable[Record]) -> Metrics:
    """The finite numbers of each step. They may be on several lines."""
    found: dict[int, dict[str, float]] = {}
    for record in records:
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        found.setdefault(int(record["step"]), {}).update(numbers)
    return found


def measure_of(rollouts: Iterable[Rollout]) -> Measure:
    """Accuracy if there are scores and all of them are 0 or 1."""
    scores = {rollout.score for rollout in rollouts} - {None}
    return Measure.ACCURACY if scores and scores <= {0.0, 1.0} else Measure.REWARD


def compare_evaluations(one: EvaluatedTwice) -> Comparison:
    """Compare each task's mean over its samples before and after. The tasks with the largest gain are shown."""
    earlier, later = _scored_by_task(one.old), _scored_by_task(one.new)
    gains = [
        (_mean(new) - _mean(old), min(old, key=_score), max(new, key=_score))
        for task, new in later.items()
        if (old := earlier.get(task))
    ]
    best = sorted((each for each in gains if each[0] > 0), key=lambda each: -each[0])[:PAIRS]
    return Comparison(
        task_set=one.task_set,
        mode=one.mode,
        before=one.before,
        after=one.after,
        better=sum(gain > 0 for gain, _, _ in gains),
        worse=sum(gain < 0 for gain, _, _ in gains),
        same=sum(gain == 0 for gain, _, _ in gains),
        pairs=tuple((old, new) for _, old, new in best),
    )


def _scored_by_task(rollouts: Iterable[Rollout]) -> dict[tuple[str, int], list[Rollout]]:
    found: dict[tuple[str, int], list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.score is not None:
            found.setdefault((rollout.task.id, rollout.key.draw), []).append(rollout)
    return found


def _score(rollout: Rollout) -> float:
    return rollout.score or 0.0


def _mean(rollouts: Sequence[Rollout]) -> float:
    return statistics.fmean(map(_score, rollouts))


def _evaluated_twice(folder: RunFolder) -> list[EvaluatedTwice]:
    stored = StoredRun(folder.rollouts)
    steps: dict[tuple[str, str], list[int]] = {}
    for step, task_set, mode in stored.evaluations() if folder.rollouts.is_file() else ():
        steps.setdefault((task_set, mode), []).append(step)
    return [
        EvaluatedTwice(
            task_set,
            mode,
            found[0],
            found[-1],
            old=stored.eval_rollouts(found[0], task_set, mode),
            new=stored.eval_rollouts(found[-1], task_set, mode),
        )
        for (task_set, mode), found in steps.items()
    ]


def _samples(folder: RunFolder) -> Iterator[StepRollouts]:
    """Rollouts of an early, a middle and a late step: the first member of the first groups, no matter its reward."""
    stored = StoredRun(folder.rollouts)
    steps = stored.steps() if folder.rollouts.is_file() else ()
    for step in dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1]) if steps else ()):
        firsts: dict[tuple[str, int], Rollout] = {}
        for rollout in stored.rollouts(step):
            firsts.setdefault((rollout.key.task_set, rollout.key.draw), rollout)
        yield StepRollouts(step, tuple(firsts.values())[:SAMPLED])


def _first_diff(folder: RunFolder, summary: RunSummary) -> TokenDiff | None:
    """The first mismatch of the first step that has one."""
    drifted = [step for step, wrong in summary.series("drift/wrong") if wrong]
    if not drifted or not folder.rollouts.is_file():
        return None
    episodes = (rollout.episode for rollout in StoredRun(folder.rollouts).rollouts(drifted[0]))
    drifts = (episode.drift for episode in episodes if episode is not None and episode.drift is not None)
    return next((drift.first for drift in drifts if drift.first is not None), None)


def _scores(metrics: Metrics) -> tuple[Evaluated, ...]:
    return tuple(
        Evaluated(
            step, task_set, mode, found.get("reward"), int(found.get("scored", 0)), failed=int(found.get("failed", 0))
        )
        for step, numbers in sorted(metrics.items())
        for (task_set, mode), found in evaluations(numbers).items()
    )


def _phases(events: Iterable[Record]) -> dict[str, float]:
    """Seconds by kind of work. Steps that were repeated count each time, because the time was spent."""
    seconds = dict.fromkeys(PHASES, 0.0)
    for event in events:
        if event["name"] in seconds:
            seconds[event["name"]] += event["end"] - event["start"]
    return {name: spent for name, spent in seconds.items() if spent > 0}


def _facts(config: Record) -> dict[str, str]:
    """The most important settings."""
    model, rollout, learner, trainer = (config.get(name) or {} for name in ("model", "rollout", "learner", "trainer"))
    groups, samples = trainer.get("groups_per_step"), rollout.get("samples_per_task")
    facts = {
        "model": model.get("path"),
        "batch": f"{groups} tasks x {samples} samples" if groups and samples else None,
        "temperature": rollout.get("temperature"),
        "advantage": (learner.get("advantage") or {}).get("kind"),
        "learning rate": learner.get("lr"),
        "seed": trainer.get("seed"),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}
