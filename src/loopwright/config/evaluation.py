"""The schema of evaluation: on what, when, and what is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loopwright.config.base import Count, CountOrZero, FromYaml, Positive, Section, Text
from loopwright.config.needs import Need, Outside
from loopwright.config.task_sets import TaskSetConfig
from loopwright.types import MetricKind

_SPELLING = re.compile(r"(?P<kind>[a-z]+)(?:@(?P<k>[1-9][0-9]*))?")
_COUNTED = {MetricKind.PASS, MetricKind.MAJORITY}

METRIC_NAMES = ("mean", "accuracy", "pass@k", "majority@k")


@dataclass(frozen=True, slots=True)
class BuiltInMetric:
    """A metric of ours; `k` is how many samples of a task it looks at."""

    kind: MetricKind
    k: int = 1


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """The user's own function by its path; its name is that of the metric."""

    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition(":")[2]


MetricSpec = BuiltInMetric | CustomMetric


def metric_spec(text: str) -> MetricSpec | None:
    """The metric that an item of `eval.metrics` names, or None if there is no such metric."""
    if ":" in text:
        return CustomMetric(text)
    found = _SPELLING.fullmatch(text)
    if found is None or found["kind"] not in list(MetricKind):
        return None
    kind = MetricKind(found["kind"])
    if (kind in _COUNTED) != (found["k"] is not None):
        return None
    return BuiltInMetric(kind, int(found["k"] or 1))


class EvalConfig(Section):
    """Before and after training, and every `every` steps when that is above 0."""

    every: CountOrZero = 0
    greedy: bool = True
    sampled: bool = True
    samples: Count = 1
    metrics: FromYaml[tuple[Text, ...]] = ("mean",)
    metric_timeout_seconds: Positive = 60.0
    correct_at: float = 1.0
    task_sets: FromYaml[tuple[TaskSetConfig, ...]] = ()

    def specs(self) -> tuple[MetricSpec, ...]:
        """The metrics, each once. The mean reward is always among them, because every view of a run shows it."""
        found = (metric_spec(text) for text in ("mean", *self.metrics))
        return tuple(dict.fromkeys(spec for spec in found if spec is not None))

    def own_metrics(self) -> tuple[CustomMetric, ...]:
        """The user's own metrics."""
        return tuple(spec for spec in self.specs() if isinstance(spec, CustomMetric))

    def needs(self) -> Iterator[Need]:
        for index, text in enumerate(self.metrics):
            if isinstance(metric_spec(text), CustomMetric):
                yield Need(Outside.CODE, ("metrics", index), text)
