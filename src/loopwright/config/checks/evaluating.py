"""Evaluation: that there is something to evaluate."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _evaluation(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _idle_evaluation(config)


def _evaluation(config: RunConfig) -> Iterator[Problem]:
    evaluation = config.eval
    if evaluation is None:
        return
    if evaluation.every > 0 and not evaluation.task_sets:
        yield Problem(
            ("eval", "every"),
            f"is {evaluation.every}, but there is nothing to evaluate on",
            "add eval.data and eval.agent, or remove eval",
        )
    if evaluation.task_sets and not (evaluation.greedy or evaluation.sampled):
        yield Problem(("eval", "greedy"), "is off, and so is eval.sampled", "switch one of them on, or remove eval")


def _idle_evaluation(config: RunConfig) -> Iterator[Problem]:
    evaluation = config.eval
    if evaluation is None:
        return
    if not evaluation.task_sets and evaluation.every == 0:
        yield Problem(("eval",), "has no effect: it has no tasks", "add eval.data and eval.agent, or remove eval")
    for index, task_set in enumerate(evaluation.task_sets):
        if "shuffle" in task_set.data.model_fields_set:
            path = ("eval", "task_sets", index, "data", "shuffle")
            yield Problem(path, "has no effect: evaluation runs every task", "remove it")
    if evaluation.every > config.trainer.steps:
        yield Problem(
            ("eval", "every"),
            f"is {evaluation.every}, more than trainer.steps ({config.trainer.steps}): "
            "evaluation runs before and after training only",
            "lower it, or leave it out",
        )
