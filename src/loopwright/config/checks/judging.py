"""Judgers: every name is known, and every declared one is used."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.judgers import BUILT_IN_JUDGERS
from loopwright.config.problems import Problem, suggest
from loopwright.config.schema import RunConfig


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _judger_names(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _unused_judgers(config)


def _judger_names(config: RunConfig) -> Iterator[Problem]:
    known = sorted({*config.judgers, *BUILT_IN_JUDGERS})
    for place, task_set in config.all_task_sets():
        name = task_set.agent.judger
        if name not in known:
            remedy = suggest(name, known, "declare it under judgers; known judgers")
            yield Problem((*place, "agent", "judger"), f"there is no judger {name!r}", remedy, also=(("judgers", ""),))


def _unused_judgers(config: RunConfig) -> Iterator[Problem]:
    used = {task_set.agent.judger for _, task_set in config.all_task_sets()}
    for name in config.judgers:
        if name not in used:
            yield Problem(
                ("judgers", name), "has no effect: no agent names it", "remove it, or name it as an agent's judger"
            )
