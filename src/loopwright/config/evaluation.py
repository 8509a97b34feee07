"""The schema of evaluation: on what, when, and what is measured."""

from __future__ import annotations

from loopwright.config.base import CountOrZero, FromYaml, Section
from loopwright.config.task_sets import TaskSetConfig


class EvalConfig(Section):
    """Before and after training, and every `every` steps when that is above 0."""

    every: CountOrZero = 0
    greedy: bool = True
    sampled: bool = True
    task_sets: FromYaml[tuple[TaskSetConfig, ...]] = ()
