"""Checks across fields. Each is a generator over a config whose single fields are valid.

A check that needs only one section's settings is a method of that section (`config/base.py`).
Problems keep a run from starting; warnings are settings that are legal but probably not meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.base import sections
from loopwright.config.checks import (
    agents,
    evaluating,
    judging,
    learning,
    placing,
    producing,
    running,
    sampling,
    tasks,
)
from loopwright.config.checks.idle import idle_settings
from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig

SUBJECTS = (tasks, judging, sampling, producing, learning, evaluating, agents, placing)
PROBLEMS = tuple(subject.problems for subject in SUBJECTS)
WARNINGS = tuple(subject.warnings for subject in SUBJECTS)
IDLE = tuple(rule for subject in (*SUBJECTS, running) for rule in subject.IDLE)


def problems(config: RunConfig) -> Iterator[Problem]:
    """Everything that cannot work."""
    for place, section in sections(config):
        yield from (problem.below(place) for problem in section.problems())
    for check in PROBLEMS:
        yield from check(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    """Everything that works, but probably not as the user expects, and every setting without effect."""
    for place, section in sections(config):
        yield from (warning.below(place) for warning in section.warnings())
    for check in WARNINGS:
        yield from check(config)
    yield from idle_settings(config, IDLE)
