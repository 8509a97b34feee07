"""Checks across fields: each is a generator over a config that is valid field by field.

Problems keep a run from starting; warnings are settings that are legal but probably not meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.checks import evaluating, judging, learning, sampling, tasks
from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig


def problems(config: RunConfig) -> Iterator[Problem]:
    """Everything that cannot work."""
    for subject in (tasks, judging, sampling, learning, evaluating):
        yield from subject.problems(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    """Everything that works, but not as somebody may expect."""
    for subject in (tasks, judging, sampling, learning, evaluating):
        yield from subject.warnings(config)
