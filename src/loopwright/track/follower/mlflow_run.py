"""A run at MLflow. Each opening of a Loopwright run is one, and has all surviving steps; the tag `loopwright.run` holds
them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from loopwright.track.follower.settings import FollowerSettings

PARAMETERS_AT_ONCE = 100
LONGEST_VALUE = 6000
"""MLflow refuses more."""
METRICS_AT_ONCE = 1000


class MlflowRun:
    """At a tracking server, or in the file `mlflow.db` of the run folder."""

    def __init__(self, settings: FollowerSettings) -> None:
        folder = Path(settings.folder).absolute()
        self._client = MlflowClient(settings.server or f"sqlite:///{folder / 'mlflow.db'}")
        found = self._client.get_experiment_by_name(settings.place)
        experiment = self._client.create_experiment(settings.place) if found is None else found.experiment_id
        tags = {"loopwright.run": settings.run_id, "loopwright.lineage": str(settings.lineage)}
        self._id = self._client.create_run(experiment, run_name=settings.name, tags=tags).info.run_id
        config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
        parameters = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in _flat(config)]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[first : first + PARAMETERS_AT_ONCE])

    def log(self, step: int, time: float, metrics: dict[str, float]) -> None:
        entries = [Metric(name, value, int(time * 1000), step) for name, value in metrics.items()]
        for first in range(0, len(entries), METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=entries[first : first + METRICS_AT_ONCE])

    def finish(self) -> None:
        self._client.set_terminated(self._id)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a config by their dotted names. An empty list or mapping is a value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{number}")
    else:
        yield name, value
