"""The user's own metric, behind the boundary that user code gets (R1): it yields finite numbers or a MetricError."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from loopwright.config import CustomMetric, load_symbol
from loopwright.core.blame import blame
from loopwright.core.evaluation import Metric
from loopwright.errors import ConfigError, MetricError
from loopwright.types import TaskResult

SIGNATURE = "`def metric(tasks: Sequence[TaskResult]) -> float | Mapping[str, float]`"


def load_metric(spec: CustomMetric, base: Path) -> Metric:
    """The function that `spec` names, as a metric of its own name."""
    function = load_symbol(spec.path, base)
    if not callable(function):
        raise ConfigError(
            f"metric {spec.path!r} names {function!r}, which cannot be called", remedy=f"name a {SIGNATURE}"
        )
    name = spec.name

    def metric(tasks: Sequence[TaskResult]) -> Mapping[str, float]:
        return {**_named(name, _called(name, function, tasks)), f"{name}/tasks": float(len(tasks))}

    return metric


def _called(name: str, function: Callable[..., Any], tasks: Sequence[TaskResult]) -> Any:
    try:
        return function(tasks)
    except (Exception, SystemExit) as error:
        raise MetricError(
            f"metric {name!r} raised {blame(error, function)}",
            remedy="mend that line; a task whose samples all failed has no scores",
        ) from error


def _named(name: str, value: Any) -> dict[str, float]:
    """One number under the metric's name, or several below it."""
    if not isinstance(value, Mapping):
        return {name: _number(name, value)}
    for key in value:
        if not isinstance(key, str) or not key or "/" in key or key == "tasks":
            raise MetricError(
                f"metric {name!r} returned a mapping with the key {key!r}",
                remedy="use short names without slashes; `tasks` is taken",
            )
    return {f"{name}/{key}": _number(f"{name}/{key}", number) for key, number in value.items()}


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise MetricError(
            f"metric {name!r} is {value!r}, which is no finite number", remedy=f"return what {SIGNATURE} says"
        )
    return float(value)
