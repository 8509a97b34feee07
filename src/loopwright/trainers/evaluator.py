"""Evaluation: metrics of a fixed task set, greedy and at the training temperature.

Every task is run exactly once, with the same seeds each time, so that evaluations can be compared task by task. A
rollout that fails is counted apart and told of; it is neither a 0 nor replaced by another task.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from loopwright.ports import Storage, Tracker
from loopwright.produce import FirstFailures, Job, RolloutRunner, TaskSetRuntime
from loopwright.types import Rollout, RolloutKey

log = logging.getLogger("loopwright")


class EvalMode(StrEnum):
    """How answers are sampled."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    """At the training temperature."""


class Evaluator:
    """Runs every task of its task sets in each mode, stores the rollouts, and reports their mean reward."""

    def __init__(
        self,
        task_sets: Sequence[TaskSetRuntime],
        modes: Sequence[EvalMode],
        runner: RolloutRunner,
        storage: Storage,
        tracker: Tracker,
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        self._task_sets = task_sets
        self._modes = modes
        self._runner = runner
        self._storage = storage
        self._tracker = tracker
        self._on_rollout = on_rollout
        self._first_failures = FirstFailures()

    async def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate the weights after train step `step`."""
        metrics: dict[str, float] = {}
        for task_set in self._task_sets:
            for mode in self._modes:
                tasks = len(task_set.sampler)
                with self._tracker.span("evaluate", step=step, task_set=task_set.name, mode=mode, tasks=tasks):
                    rollouts = await self._runner.run(_jobs(task_set, mode), self._saw)
                    await self._storage.put_eval(step, task_set.name, mode, rollouts)
                prefix = f"eval/{task_set.name}/{mode}"
                metrics |= {f"{prefix}/{name}": value for name, value in eval_metrics(rollouts).items()}
                if f"{prefix}/reward" not in metrics:
                    log.warning("%s after step %d: all %d rollouts failed, so there is no reward", prefix, step, tasks)
        return metrics

    async def _saw(self, rollout: Rollout) -> None:
        self._first_failures.saw(rollout)
        if self._on_rollout is not None:
            self._on_rollout(rollout)


def eval_metrics(rollouts: Sequence[Rollout]) -> Mapping[str, float]:
    """The mean reward of what was scored; without any score there is no mean."""
    scores = [rollout.score for rollout in rollouts if rollout.score is not None]
    counts = {"scored": float(len(scores)), "failed": float(len(rollouts) - len(scores))}
    return {"reward": statistics.fmean(scores), **counts} if scores else counts


def _jobs(task_set: TaskSetRuntime, mode: EvalMode) -> list[Job]:
    if mode is EvalMode.GREEDY:
        task_set = replace(task_set, sampling=replace(task_set.sampling, temperature=0.0, top_k=0, top_p=1.0))
    return [
        Job(RolloutKey(task_set.name, i, 0), task_set.sampler.task(i), task_set, split=f"eval/{mode}")
        for i in range(len(task_set.sampler))
    ]
