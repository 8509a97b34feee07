"""Decides whether a run may continue with a changed config. It may if the changes do not affect what is learned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from loopwright.config import RunConfig
from loopwright.config.placement import PER_ACTOR
from loopwright.types import Schedule

FREE = (
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "trainer.run_dir",
    "trainer.export",
    "trainer.stall_seconds",
    "model.device",
    "rollout.engine.device",
    "learner.checkpoint_activations",
    "learner.ranks",
    "learner.placement",
    "learner.max_restarts",
    "rollout.worker_silence_seconds",
    "rollout.engine.urls.",
    "rollout.engine.num_engines",
    "rollout.engine.key_env",
    "rollout.engine.wait_seconds",
    "gateway.url",
    "gateway.key_env",
    "rollout.door",
    "rollout.door.",
    "produce.max_attempts",
    "produce.judge_attempts",
    "produce.failure_budget",
    "produce.filter_budget",
    "buffer.archive",
    *(
        f"{place}.{name}"
        for place in ("task_sets.*.agent", "eval.task_sets.*.agent", "judgers.*", "rollout.engine", "gateway")
        for name in ("num_actors", *PER_ACTOR)
    ),
    "rollout.nodes",
    "cluster.",
    "track.",
)
"""Settings that may differ when a run continues. A name that ends in a dot stands for all settings below it, and a star
for any item. Where something runs is free, and so is how many of it there are. Those of `produce` are the ones that the
error of a used-up failure budget mentions."""

FREE_PATTERNS = [re.escape(name).replace(r"\*", "[^.]+") + ("" if name.endswith(".") else "$") for name in FREE]

STEPS, SCHEDULE = "trainer.steps", "learner.schedule"

_UNSET = object()


def config_changes(previous: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The changes that forbid continuing, as `key: old -> new`. Free settings may change. More steps are allowed too,
    unless the learning rate falls towards the last step."""
    old, new = _flat(_completed(previous)), _flat(config)
    changed = [key for key in {**old, **new} if old.get(key, _UNSET) != new.get(key, _UNSET)]
    falling = new.get(SCHEDULE, Schedule.CONSTANT) != Schedule.CONSTANT
    return [
        f"{key}: {_shown(old.get(key, _UNSET))} -> {_shown(new.get(key, _UNSET))}"
        + (f" (changes the learning rate of every later step: {SCHEDULE} is {new[SCHEDULE]})" if is_length else "")
        for key in changed
        if (is_length := key == STEPS and falling) or not _may_change(key, old.get(key), new.get(key))
    ]


def _completed(previous: Mapping[str, Any]) -> Mapping[str, Any]:
    """The old config, completed with the defaults of settings that an earlier version did not have. At its default,
    such a setting counts as unchanged."""
    try:
        return RunConfig.model_validate(previous).model_dump(mode="json")
    except ValidationError:
        return previous


def _may_change(key: str, old: Any, new: Any) -> bool:
    if key == STEPS:
        return isinstance(old, int) and isinstance(new, int) and new >= old
    return any(re.match(pattern, key) for pattern in FREE_PATTERNS)


def _shown(value: Any) -> str:
    return "(not set)" if value is _UNSET else repr(value)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """All leaves by their dotted path. An empty list or mapping is a leaf."""
    if isinstance(value, Mapping) and value:
        pairs = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and value:
        pairs = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for key, inner in pairs:
        leaves |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return leaves
