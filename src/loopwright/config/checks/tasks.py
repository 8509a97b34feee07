"""Task sets: names, weights, sources and filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.problems import KeyPath, Problem, suggest
from loopwright.config.schema import RunConfig
from loopwright.config.task_sets import FILTERS


def _filters(config: RunConfig) -> bool:
    return any((task_set.filter or config.produce.filter) != "none" for task_set in config.task_sets)


IDLE = (
    Idle("task_sets.*.weight", lambda config, _: len(config.task_sets) == 1, "there is only one task set"),
    Idle("eval.task_sets.*.weight", lambda config, _: True, "evaluation runs every task"),
    Idle("eval.task_sets.*.data.shuffle", lambda config, _: True, "evaluation runs every task"),
    Idle("eval.task_sets.*.filter", lambda config, _: True, "evaluation filters nothing"),
    Idle("eval.task_sets.*.agent.train", lambda config, _: True, "evaluation trains nothing"),
    Idle("produce.filter", lambda config, _: not _inherits(config), "every task set has its own"),
    Idle("produce.filter_budget", lambda config, _: not _filters(config), "nothing is filtered"),
    Idle("produce.filter_timeout_seconds", lambda config, _: not _has_own_filter(config), "no filter is your own"),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _task_sets(config)
    yield from _filter_name(("produce", "filter"), config.produce.filter)
    for place, task_set in config.all_task_sets():
        yield from _filter_name((*place, "filter"), task_set.filter or "none")
    yield from _lone_members(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    """Warn about an evaluation on training tasks: it measures memory, and is often a mistake."""
    for index, held_out in enumerate(config.eval.task_sets if config.eval else ()):
        for trained in config.task_sets:
            if remedy := held_out.data.overlap(trained.data):
                path = ("eval", "task_sets", index, "data")
                yield Problem(path, f"has tasks that task set {trained.name!r} trains on", remedy)


def _task_sets(config: RunConfig) -> Iterator[Problem]:
    if not config.task_sets:
        yield Problem(("task_sets",), "empty", "add data and agent, or at least one task set")
    for split in ((), ("eval",)):
        names = Counter(task_set.name for place, task_set in config.all_task_sets() if place[:-2] == split)
        for name, count in names.items():
            if count > 1:
                yield Problem((*split, "task_sets"), f"{count} are named {name!r}", "give each a name of its own")


def _filter_name(path: KeyPath, name: str) -> Iterator[Problem]:
    if name not in FILTERS and ":" not in name:
        remedy = suggest(name, FILTERS, "write file.py:name for a function of yours; known filters")
        yield Problem(path, f"there is no filter {name!r}", remedy)


def _lone_members(config: RunConfig) -> Iterator[Problem]:
    for path in no_signal_places(config) if config.rollout.samples_per_task == 1 else ():
        yield Problem(
            path,
            "is no_signal, but rollout.samples_per_task is 1: a lone member differs from nobody",
            "raise rollout.samples_per_task, or remove the filter",
            also=(("rollout", "samples_per_task"),),
        )


def no_signal_places(config: RunConfig) -> list[KeyPath]:
    """Every setting that drops groups without signal, once."""
    places: dict[KeyPath, str] = {("produce", "filter"): config.produce.filter} if _inherits(config) else {}
    places |= {("task_sets", i, "filter"): one.filter for i, one in enumerate(config.task_sets) if one.filter}
    return [path for path, name in places.items() if name == "no_signal"]


def _has_own_filter(config: RunConfig) -> bool:
    """One of groups, or one of chains."""
    return any(
        ":" in (task_set.filter or config.produce.filter) or ":" in task_set.agent.chain_choice
        for task_set in config.task_sets
    )


def _inherits(config: RunConfig) -> bool:
    return not all(one.filter for one in config.task_sets)
