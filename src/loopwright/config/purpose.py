"""What a config is loaded for. Only what that uses must exist on disk and in the environment."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from loopwright.config.base import Section
from loopwright.config.judgers import made_of
from loopwright.config.learner import LearnerConfig
from loopwright.config.placement import PlacedSection
from loopwright.config.schema import RunConfig
from loopwright.types import TrainerKind


class Purpose(StrEnum):
    """Who uses the config."""

    TRAIN = "train"
    EVALUATE = "eval"
    """The evaluation tasks, without training."""
    ROLL_OUT = "rollout"
    """The training tasks, without training; nothing is filtered."""
    REPLAY = "replay"
    """Only the learner, on recorded groups."""


def part_for(config: RunConfig, purpose: Purpose) -> RunConfig:
    """The config without the sections that `purpose` does not use. The others keep their places."""
    if purpose is Purpose.TRAIN:
        return config
    changes: dict[str, Any] = {
        "produce": config.produce.model_copy(update={"filter": "none"}),
        "track": config.track.model_copy(update={"tensorboard": False, "wandb": None, "mlflow": None}),
        "rollout": config.rollout.model_copy(update={"engine": config.rollout.engine.embedded, "door": None}),
        "trainer": config.trainer.model_copy(update={"kind": TrainerKind.COLOCATE}),
        "task_sets": (),
    }
    if purpose is not Purpose.REPLAY:
        changes["learner"] = LearnerConfig()
    if purpose is not Purpose.EVALUATE:
        changes["eval"] = None
    if purpose is Purpose.ROLL_OUT:
        changes["task_sets"] = tuple(one.model_copy(update={"filter": None}) for one in config.task_sets)
    part: RunConfig = _here(config.model_copy(update=changes))
    named = {task_set.agent.judger for _, task_set in part.all_task_sets()}
    used = named | made_of(named, config.judgers)
    return part.model_copy(update={"judgers": {name: one for name, one in part.judgers.items() if name in used}})


def _here(value: Any) -> Any:
    """The same without actors: only a training has a cluster."""
    if isinstance(value, Section):
        changes = {name: _here(getattr(value, name)) for name in type(value).model_fields}
        return value.model_copy(update=changes | ({"num_actors": 0} if isinstance(value, PlacedSection) else {}))
    if isinstance(value, dict):
        return {key: _here(item) for key, item in value.items()}
    return tuple(_here(item) for item in value) if isinstance(value, tuple) else value
