"""Task sets: names and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _task_sets(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _idle_weights(config)


def _task_sets(config: RunConfig) -> Iterator[Problem]:
    if not config.task_sets:
        yield Problem(("task_sets",), "empty", "add data and agent, or at least one task set")
    for split in ((), ("eval",)):
        names = Counter(task_set.name for place, task_set in config.all_task_sets() if place[:-2] == split)
        for name, count in names.items():
            if count > 1:
                yield Problem((*split, "task_sets"), f"{count} are named {name!r}", "give each a name of its own")


def _idle_weights(config: RunConfig) -> Iterator[Problem]:
    idle = [place for place, _ in config.all_task_sets() if place[0] == "eval" or len(config.task_sets) == 1]
    for place, task_set in config.all_task_sets():
        if place in idle and "weight" in task_set.model_fields_set:
            reason = "evaluation runs every task" if place[0] == "eval" else "there is only one task set"
            yield Problem((*place, "weight"), f"has no effect: {reason}", "remove it")
