"""How the task sets of a config are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from loopwright.config import BuiltInMetric, CustomMetric, EvalConfig, Loaded, MetricSpec
from loopwright.core.evaluation import Metric, accuracy, majority_at_k, mean_reward, pass_at_k
from loopwright.trainers.custom_metric import UserMetric
from loopwright.trainers.evaluator import EvalPlan
from loopwright.types import EvalMode, MetricKind


def eval_modes(config: EvalConfig) -> list[EvalMode]:
    return [mode for mode in EvalMode if getattr(config, mode)]


def eval_plans(loaded: Loaded) -> list[EvalPlan]:
    """What is sampled and measured in each mode; also loads the user's own metrics."""
    config = loaded.config.eval
    return [_plan(config, mode, loaded.base) for mode in eval_modes(config)] if config else []


def _plan(config: EvalConfig, mode: EvalMode, base: Path) -> EvalPlan:
    # All greedy answers to one task are equal, so one is enough.
    samples = config.samples if mode is EvalMode.SAMPLED else 1
    return EvalPlan(mode, samples, tuple(_metrics(config, samples, base)))


def _metrics(config: EvalConfig, samples: int, base: Path) -> Iterator[Metric]:
    """The metrics for which this many samples are enough."""
    for spec in config.specs():
        if not isinstance(spec, BuiltInMetric) or spec.k <= samples:
            yield _metric(spec, config, base)


def user_metric(spec: CustomMetric, config: EvalConfig, base: Path) -> UserMetric:
    """Load the user's function; a mistake in it is an error that names it."""
    return UserMetric(spec, base, config.metric_timeout_seconds)


def _metric(spec: MetricSpec, config: EvalConfig, base: Path) -> Metric:
    if not isinstance(spec, BuiltInMetric):
        return user_metric(spec, config, base)
    match spec.kind:
        case MetricKind.MEAN:
            return mean_reward
        case MetricKind.ACCURACY:
            return partial(accuracy, correct_at=config.correct_at)
        case MetricKind.PASS:
            return partial(pass_at_k, k=spec.k, correct_at=config.correct_at)
        case MetricKind.MAJORITY:
            return partial(majority_at_k, k=spec.k)
