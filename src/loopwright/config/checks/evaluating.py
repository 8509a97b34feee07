"""Evaluation: there are tasks to evaluate on, and the metrics can be computed."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.evaluation import (
    METRIC_NAMES,
    BuiltInMetric,
    CustomMetric,
    EvalConfig,
    metric_spec,
)
from loopwright.config.problems import Problem, suggest
from loopwright.config.schema import RunConfig
from loopwright.types import MetricKind

TAKEN = ("reward", "accuracy", "tasks", "scored", "failed", "metrics_failed", "greedy", "sampled")
"""Names in the place where a custom metric's number goes."""


def _counts_right_answers(evaluation: EvalConfig) -> bool:
    kinds = {spec.kind for spec in evaluation.specs() if isinstance(spec, BuiltInMetric)}
    return bool(kinds & {MetricKind.ACCURACY, MetricKind.PASS})


IDLE = (
    Idle("eval.metric_timeout_seconds", lambda _, evaluation: not evaluation.own_metrics(), "no metric is your own"),
    Idle(
        "eval.samples",
        lambda _, evaluation: not evaluation.sampled,
        "greedy answers are alike",
        "switch eval.sampled on",
    ),
    Idle(
        "eval.correct_at",
        lambda _, evaluation: not _counts_right_answers(evaluation),
        "no metric counts right answers",
        "add accuracy or pass@k to eval.metrics, or remove it",
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    if config.eval is not None:
        yield from _evaluation(config.eval)
        yield from _metrics(config.eval)


def warnings(config: RunConfig) -> Iterator[Problem]:
    if config.eval is not None:
        yield from _idle_evaluation(config.eval, config.trainer.steps)


def _evaluation(evaluation: EvalConfig) -> Iterator[Problem]:
    if evaluation.every > 0 and not evaluation.task_sets:
        yield Problem(
            ("eval", "every"),
            f"is {evaluation.every}, but there is nothing to evaluate on",
            "add eval.data and eval.agent, or remove eval",
        )
    if evaluation.task_sets and not (evaluation.greedy or evaluation.sampled):
        yield Problem(("eval", "greedy"), "is off, and so is eval.sampled", "switch one of them on, or remove eval")


def _metrics(evaluation: EvalConfig) -> Iterator[Problem]:
    custom: set[str] = set()
    for index, text in enumerate(evaluation.metrics):
        place = ("eval", "metrics", index)
        match metric_spec(text):
            case None:
                names = (*METRIC_NAMES, "file.py:name")
                yield Problem(place, f"there is no metric {text!r}", suggest(text, names, "known metrics"))
            case BuiltInMetric(_, k) if k > 1:
                yield from _samples(evaluation, place, text, k)
            case CustomMetric() as metric:
                if metric.name in TAKEN or metric.name in custom:
                    yield Problem(place, f"the name {metric.name!r} is taken", "give the function another name")
                custom.add(metric.name)


def _samples(evaluation: EvalConfig, place: tuple[str | int, ...], text: str, k: int) -> Iterator[Problem]:
    if not evaluation.sampled:
        yield Problem(
            place,
            f"{text} needs {k} samples of a task, and greedy evaluation has one",
            "switch eval.sampled on",
            also=(("eval", "sampled"),),
        )
    elif k > evaluation.samples:
        yield Problem(
            place,
            f"{text} needs {k} samples of a task, and eval.samples is {evaluation.samples}",
            f"set eval.samples to {k} or more",
            also=(("eval", "samples"),),
        )


def _idle_evaluation(evaluation: EvalConfig, steps: int) -> Iterator[Problem]:
    if not evaluation.task_sets and evaluation.every == 0:
        yield Problem(("eval",), "has no effect: it has no tasks", "add eval.data and eval.agent, or remove eval")
    if evaluation.every > steps:
        yield Problem(
            ("eval", "every"),
            f"is {evaluation.every}, more than trainer.steps ({steps}): evaluation runs before and after training only",
            "lower it, or leave it out",
        )
