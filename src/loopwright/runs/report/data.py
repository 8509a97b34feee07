"""The results of a run as plain values. The final summary and the report are made from these values only.

A score that does not exist is None, never 0 (R2).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loopwright.types import Rollout, TokenDiff

Series = tuple[tuple[int, float], ...]
"""Values by train step, in order."""

PHASES = ("rollout", "wait", "train", "sync", "evaluate", "checkpoint", "export")
"""The spans that never overlap in a run, so their times can be added."""


class Measure(StrEnum):
    """What a mean of rewards means."""

    ACCURACY = "accuracy"
    """All rewards are 0 or 1, so the mean is the share of correct answers."""
    REWARD = "reward"

    def shown(self, value: float | None) -> str:
        if value is None:
            return "no score"
        return f"{value:.1%}" if self is Measure.ACCURACY else f"{value:.3f}"

    def difference(self, before: float | None, after: float | None) -> str:
        if before is None or after is None:
            return ""
        change = after - before
        return f"{100 * change:+.1f} points" if self is Measure.ACCURACY else f"{change:+.3f}"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The numbers of one evaluation, with its train step (0 is before training), its task set and its mode."""

    step: int
    task_set: str
    mode: str
    reward: float | None
    scored: int
    failed: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The first and the last evaluation of one task set in one mode. `after` is None while there is only one."""

    before: Evaluated
    after: Evaluated | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in numbers. `steps` holds the metrics of each step, `phases` the seconds spent in each kind of work."""

    folder: Path
    measure: Measure
    steps: Mapping[int, Mapping[str, float]]
    evaluations: tuple[Evaluated, ...]
    phases: Mapping[str, float]
    report: Path | None = None
    export: Path | None = None

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def series(self, name: str) -> Series:
        """One metric over the steps that have it."""
        return tuple((step, metrics[name]) for step, metrics in sorted(self.steps.items()) if name in metrics)

    def total(self, name: str) -> int:
        return int(sum(value for _, value in self.series(name)))

    def progress(self) -> tuple[Progress, ...]:
        """Before and after, for each task set and mode in the order of their first evaluation."""
        found: dict[tuple[str, str], list[Evaluated]] = {}
        for one in sorted(self.evaluations, key=lambda each: each.step):
            found.setdefault((one.task_set, one.mode), []).append(one)
        return tuple(Progress(each[0], each[-1] if len(each) > 1 else None) for each in found.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same held-out tasks before and after training. Tasks that failed in one of the evaluations are not
    counted."""

    task_set: str
    mode: str
    before: int
    after: int
    """`before` and `after` are the train steps of the two evaluations."""
    better: int
    worse: int
    same: int
    pairs: tuple[tuple[Rollout, Rollout], ...]
    """A few tasks that improved: the worst sample before, and the best sample after."""


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """A few rollouts of one train step, chosen without looking at their rewards."""

    step: int
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that the report shows. `facts` are the important settings; `config` is the whole config as text.
    `first_diff` is the first token that would be wrong if the text were tokenised again."""

    summary: RunSummary
    facts: Mapping[str, str]
    config: str
    comparisons: tuple[Comparison, ...] = ()
    samples: tuple[StepRollouts, ...] = ()
    first_diff: TokenDiff | None = None


def edges(series: Series, most: int = 5) -> tuple[Series, Series]:
    """The first and the last steps of a series: the same number of each, at most `most`, without overlap."""
    count = min(most, len(series) // 2)
    return (series[:count], series[-count:]) if count else (series, ())


def mean(series: Series) -> float | None:
    return statistics.fmean(value for _, value in series) if series else None
