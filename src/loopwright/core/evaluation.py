"""The metrics of an evaluation, as pure functions of its tasks.

All tasks count the same, no matter how many samples they have: a metric is computed per task, then averaged over tasks.
A failed sample is not a 0 (R2): it is left out of its task, and a task with too few scored samples is left out of the
metric. So every number comes with the number of tasks behind it, and with its standard error over tasks.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from loopwright.errors import MetricError
from loopwright.types import Scored, TaskResult

Numbers = Mapping[str, float]
Metric = Callable[[Sequence[TaskResult]], Numbers | Awaitable[Numbers]]
"""Numbers by name. `<name>/tasks` is the number of tasks behind the number, `<name>/stderr` its standard error. A
number that could not be computed is missing, and its `/tasks` is 0."""


def mean_reward(tasks: Sequence[TaskResult]) -> Mapping[str, float]:
    return averaged("reward", (statistics.fmean(task.scores) for task in tasks if task.scores))


def accuracy(tasks: Sequence[TaskResult], *, correct_at: float) -> Mapping[str, float]:
    """The share of samples with a score of at least `correct_at`."""
    shares = (_right(task, correct_at) / len(task.scores) for task in tasks if task.scores)
    return averaged("accuracy", shares)


def pass_at_k(tasks: Sequence[TaskResult], *, k: int, correct_at: float) -> Mapping[str, float]:
    """How likely at least one of k samples is right. A task with fewer than k scored samples is left out."""
    chances = (chance_of_one(len(task.scores), _right(task, correct_at), k) for task in tasks if len(task.scores) >= k)
    return averaged(f"pass@{k}", chances)


def majority_at_k(tasks: Sequence[TaskResult], *, k: int) -> Mapping[str, float]:
    """The score of the answer that most of a task's first k scored samples agree on.

    It uses the first k samples, not the mean over all choices of k. Samples are exchangeable, so this is unbiased, and
    it can be checked in the stored trajectories. A task with fewer than k scored samples is left out.
    """
    if (samples := [reward for task in tasks for reward in task.scored]) and not any(map(_has_answer, samples)):
        raise MetricError(
            f"majority@{k} needs the answers that samples agree on, and no score of {len(samples)} carries one",
            remedy="let the judger return Scored(value, answer=...), or remove it from eval.metrics",
        )
    return averaged(f"majority@{k}", (agreed_score(task.scored[:k]) for task in tasks if len(task.scored) >= k))


def chance_of_one(samples: int, right: int, k: int) -> float:
    """The share of all choices of k out of `samples` that contain one of the `right` ones. It is unbiased for
    pass@k."""
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def agreed_score(samples: Sequence[Scored]) -> float:
    """The mean score of the samples with the most frequent answer. In a tie, the answer that was seen first wins.

    A sample without an answer has no vote. If no sample votes, all samples count.
    """
    votes = Counter(sample.answer for sample in samples if _has_answer(sample))
    winner = max(votes, key=votes.__getitem__) if votes else None  # of equals, max and Counter keep the first
    return statistics.fmean(sample.value for sample in samples if not votes or sample.answer == winner)


def averaged(name: str, values: Iterable[float]) -> Mapping[str, float]:
    """The mean of one value per task, its standard error, and the number of tasks."""
    found = list(values)
    numbers = {f"{name}/tasks": float(len(found))}
    if found:
        numbers[name] = statistics.fmean(found)
    if len(found) > 1:
        numbers[f"{name}/stderr"] = statistics.stdev(found) / math.sqrt(len(found))
    return numbers


def _right(task: TaskResult, correct_at: float) -> int:
    return sum(score >= correct_at for score in task.scores)


def _has_answer(sample: Scored) -> bool:
    return sample.answer is not None
