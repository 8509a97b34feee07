"""The learner and the batches it is fed."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.problems import KeyPath, Problem, dotted
from loopwright.config.schema import RunConfig


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _batches(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _no_signal(config)


def _batches(config: RunConfig) -> Iterator[Problem]:
    limits: list[tuple[KeyPath, int | None, KeyPath, int]] = [
        (
            ("produce", "min_members"),
            config.produce.min_members,
            ("rollout", "samples_per_task"),
            config.rollout.samples_per_task,
        ),
        (
            ("learner", "mini_batches"),
            config.learner.mini_batches,
            ("trainer", "groups_per_step"),
            config.trainer.groups_per_step,
        ),
        (("learner", "warmup_steps"), config.learner.warmup_steps, ("trainer", "steps"), config.trainer.steps),
    ]
    for path, value, limit_path, limit in limits:
        if value is not None and value > limit:
            other = dotted(limit_path)
            yield Problem(
                path, f"is {value}, more than {other} ({limit})", f"lower it, or raise {other}", also=(limit_path,)
            )


def _no_signal(config: RunConfig) -> Iterator[Problem]:
    if config.rollout.samples_per_task == 1:
        yield Problem(
            ("rollout", "samples_per_task"),
            f"is 1: {config.learner.advantage} compares the members of a group, and a lone one teaches nothing",
            "set it to 2 or more; 8 is usual",
        )
