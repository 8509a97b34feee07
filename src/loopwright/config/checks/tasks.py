"""Task sets: names and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig


def _filters(config: RunConfig) -> bool:
    return any((task_set.filter or config.produce.filter) != "none" for task_set in config.task_sets)


IDLE = (
    Idle("task_sets.*.weight", lambda config, _: len(config.task_sets) == 1, "there is only one task set"),
    Idle("eval.task_sets.*.weight", lambda config, _: True, "evaluation runs every task"),
    Idle("eval.task_sets.*.data.shuffle", lambda config, _: True, "evaluation runs every task"),
    Idle("eval.task_sets.*.filter", lambda config, _: True, "evaluation filters nothing"),
    Idle("produce.filter", lambda config, _: all(one.filter for one in config.task_sets), "every task set has its own"),
    Idle("produce.filter_budget", lambda config, _: not _filters(config), "nothing is filtered"),
    *(
        Idle(f"{sets}.*.data.columns", lambda _, data: data.map is not None, "map makes the task of the whole row")
        for sets in ("task_sets", "eval.task_sets")
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _task_sets(config)


def _task_sets(config: RunConfig) -> Iterator[Problem]:
    if not config.task_sets:
        yield Problem(("task_sets",), "empty", "add data and agent, or at least one task set")
    for split in ((), ("eval",)):
        names = Counter(task_set.name for place, task_set in config.all_task_sets() if place[:-2] == split)
        for name, count in names.items():
            if count > 1:
                yield Problem((*split, "task_sets"), f"{count} are named {name!r}", "give each a name of its own")
