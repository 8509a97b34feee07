"""The user's own metric, behind the boundary around user code (R1). It gives finite numbers or a MetricError."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from loopwright.config import CustomMetric, load_symbol
from loopwright.core.blame import blame
from loopwright.errors import ConfigError, MetricError
from loopwright.types import TaskResult
from loopwright.workers import WHY_WORKERS_DIE, UserFunction

SIGNATURE = "`def metric(tasks: Sequence[TaskResult]) -> float | Mapping[str, float]`"


class UserMetric:
    """The function that `spec` names, sync or async, as a metric under its own name.

    Each call starts its own worker process: evaluations are rare, and no process is kept in between.
    """

    def __init__(self, spec: CustomMetric, base: Path, timeout_seconds: float) -> None:
        if not callable(function := load_symbol(spec.path, base)):
            raise ConfigError(
                f"metric {spec.path!r} names {function!r}, which cannot be called", remedy=f"name a {SIGNATURE}"
            )
        self._blame = _Blame(spec.name, spec.path)
        self._base = base
        self._timeout = timeout_seconds

    async def __call__(self, tasks: Sequence[TaskResult]) -> Mapping[str, float]:
        async with UserFunction(self._blame, self._base, self._timeout) as function:
            numbers = await function.call(partial(_named, self._blame.name), tasks)
        return {**numbers, f"{self._blame.name}/tasks": float(len(tasks))}


@dataclass(frozen=True, slots=True)
class _Blame:
    """The error texts about a metric."""

    name: str
    path: str

    def raised(self, error: BaseException, function: Callable[..., Any]) -> MetricError:
        return MetricError(
            f"metric {self.name!r} raised {blame(error, function)}",
            remedy="fix that line; a task whose samples all failed has no scores",
        )

    def late(self, seconds: float) -> MetricError:
        return MetricError(
            f"metric {self.name!r} gave nothing within {seconds:g} s, and was stopped",
            remedy="make it faster, or raise eval.metric_timeout_seconds",
        )

    def died(self, how: BaseException) -> MetricError:
        return MetricError(
            f"metric {self.name!r} took its worker process down ({type(how).__name__}: {how})",
            remedy=WHY_WORKERS_DIE,
        )


def _named(name: str, value: Any) -> dict[str, float]:
    """One number under the metric's name, or several numbers under `<name>/<key>`."""
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
