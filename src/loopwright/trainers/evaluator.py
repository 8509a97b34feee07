"""Evaluation: metrics of a fixed task set, greedy and at the training temperature.

Every task is run the same number of times, with the same seeds in each evaluation, so evaluations can be compared task
by task. A failed rollout is counted separately and reported. It is not a 0, and no other task replaces it. A metric
that cannot be computed is missing, and is counted; the other metrics and the trajectories are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable

from loopwright.core.evaluation import Metric
from loopwright.errors import MetricError
from loopwright.ports import Storage, Tracker
from loopwright.produce import FirstFailures, Job, RolloutRunner, TaskSetRuntime
from loopwright.types import EvalMode, Rollout, RolloutKey, Split, TaskResult

log = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """One way of evaluating: how often each task is sampled, and which metrics are computed."""

    mode: EvalMode
    samples: int
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class EvalReport:
    """Numbers under names like `eval/<task set>/<mode>/reward`, and the errors of metrics that are missing."""

    metrics: Mapping[str, float]
    errors: tuple[MetricError, ...] = ()


class Evaluator:
    """Runs every task of its task sets as each plan says, stores the rollouts, and computes the metrics."""

    def __init__(
        self,
        task_sets: Sequence[TaskSetRuntime],
        plans: Sequence[EvalPlan],
        runner: RolloutRunner,
        storage: Storage,
        tracker: Tracker,
        *,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        self._task_sets = task_sets
        self._plans = plans
        self._runner = runner
        self._storage = storage
        self._tracker = tracker
        self._on_rollout = on_rollout
        self._first_failures = FirstFailures()

    async def evaluate(self, step: int) -> EvalReport:
        """Evaluate the weights after train step `step`."""
        metrics: dict[str, float] = {}
        errors: list[MetricError] = []
        for task_set in self._task_sets:
            for plan in self._plans:
                prefix = f"eval/{task_set.name}/{plan.mode}"
                results = await self._results(step, task_set, plan)
                numbers, problems = await _measure(results, plan.metrics)
                metrics |= {f"{prefix}/{name}": value for name, value in numbers.items()}
                errors += [_placed(prefix, problem) for problem in problems]
                if not any(result.scored for result in results):
                    log.warning("%s after step %d: all rollouts failed, so there is no reward", prefix, step)
        return EvalReport(metrics, tuple(errors))

    async def _results(self, step: int, task_set: TaskSetRuntime, plan: EvalPlan) -> list[TaskResult]:
        jobs = _jobs(task_set, plan)
        facts = {"task_set": task_set.name, "mode": plan.mode, "tasks": len(task_set.sampler), "rollouts": len(jobs)}
        with self._tracker.span("evaluate", step=step, **facts):
            # Without slots of somebody else's, no job is turned away.
            rollouts = [one for one in await self._runner.run(jobs, self._saw) if one is not None]
            await self._storage.put_eval(step, task_set.name, plan.mode, rollouts)
        return [
            TaskResult(jobs[first].task, tuple(rollouts[first : first + plan.samples]))
            for first in range(0, len(jobs), plan.samples)
        ]

    async def _saw(self, rollout: Rollout) -> None:
        self._first_failures.saw(rollout)
        if self._on_rollout is not None:
            self._on_rollout(rollout)


async def _measure(
    results: Sequence[TaskResult], metrics: Sequence[Metric]
) -> tuple[dict[str, float], list[MetricError]]:
    """All metrics that can be computed, with their counts, and the errors of the others."""
    numbers = {
        "tasks": float(len(results)),
        "scored": float(sum(len(result.scored) for result in results)),
        "failed": float(sum(result.failed for result in results)),
    }
    errors: list[MetricError] = []
    for metric in metrics:
        try:
            found = metric(results)
            numbers |= await found if isawaitable(found) else found
        except MetricError as error:
            errors.append(error)
    return {**numbers, "metrics_failed": float(len(errors))}, errors


def _placed(prefix: str, error: MetricError) -> MetricError:
    return MetricError(f"{prefix}: {error.message}", remedy=error.remedy)


def _jobs(task_set: TaskSetRuntime, plan: EvalPlan) -> list[Job]:
    """All samples. The samples of one task are neighbours."""
    sampling = task_set.sampling
    if plan.mode is EvalMode.GREEDY:
        sampling = replace(sampling, temperature=0.0, top_k=0, top_p=1.0)
    tasks = [task_set.sampler.task(index) for index in range(len(task_set.sampler))]
    return [
        Job(RolloutKey(task_set.name, index, sample), task, sampling, task_set.judger, Split.EVAL, plan.mode)
        for index, task in enumerate(tasks)
        for sample in range(plan.samples)
    ]
