"""Sampling: one temperature, and lengths that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.problems import KeyPath, Problem
from loopwright.config.schema import Dtype, RolloutConfig, RunConfig
from loopwright.config.task_sets import SamplingOverrides
from loopwright.types import ProduceKind, TrainerKind

SAMPLED = ("max_new_tokens", "top_k", "top_p", "stop")
"""Settings of `rollout` that a task set may replace."""


def _replaced(name: str) -> Callable[[RunConfig, RolloutConfig], bool]:
    """Whether every task set has its own `name`."""
    return lambda config, _: all(getattr(one.sampling, name) is not None for _, one in config.all_task_sets())


def _in_flight(config: RunConfig) -> int | None:
    """The most rollouts that training has at once. None if an evaluation may have more."""
    if config.eval:
        return None
    groups, produce = config.trainer.groups_per_step, config.produce
    if config.trainer.kind is TrainerKind.DISAGGREGATED:
        groups *= (produce.max_staleness + 1) * config.trainer.sync_interval
    elif produce.kind is ProduceKind.ASYNC:
        groups += math.ceil(groups * produce.over_sample)
    return groups * config.rollout.samples_per_task


def _fixed(rollout: RolloutConfig, otherwise: int) -> int:
    # With `auto` it follows what the engines can hold, which is not known here.
    return rollout.concurrency if isinstance(rollout.concurrency, int) else otherwise


def _one_call_each(config: RunConfig) -> bool:
    return all(task_set.agent.call_limit == 1 for _, task_set in config.all_task_sets())


IDLE = (
    *(Idle(f"rollout.{name}", _replaced(name), "every task set has its own") for name in SAMPLED),
    *(
        Idle(f"{sets}.*.sampling.temperature", lambda config, _: True, "it can only repeat rollout.temperature")
        for sets in ("task_sets", "eval.task_sets")
    ),
    Idle(
        "rollout.concurrency",
        lambda config, rollout: (most := _in_flight(config)) is not None and _fixed(rollout, most) > most,
        "training has fewer rollouts at a time",
    ),
    Idle(
        "rollout.engine.max_batch",
        lambda config, engine: _one_call_each(config) and engine.max_batch > _fixed(config.rollout, engine.max_batch),
        "rollout.concurrency lets fewer answers be sampled at once",
    ),
    Idle(
        "rollout.engine.cache_tokens",
        lambda config, engine: config.trainer.deterministic,
        "with trainer.deterministic nothing is kept: a copied beginning may change the last bits of what follows",
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _one_temperature(config)
    yield from _lengths(config)
    if config.rollout.engine.truncates_logprobs:
        yield from _truncated_sampling(config, f"the logprobs of {config.rollout.engine.kind} come after it")


def warnings(config: RunConfig) -> Iterator[Problem]:
    if not config.rollout.engine.truncates_logprobs:
        yield from _truncated_sampling(config, "it changes what is sampled but not the logprobs that are trained on")
    yield from _slow_numbers(config)


def _one_temperature(config: RunConfig) -> Iterator[Problem]:
    common = config.rollout.temperature
    for place, task_set in config.all_task_sets():
        own = task_set.sampling.temperature
        if own is not None and own != common:
            yield Problem(
                (*place, "sampling", "temperature"),
                f"is {own}, but rollout.temperature is {common}: logprobs are compared at one temperature per run",
                "remove it, or set rollout.temperature to it",
                also=(("rollout", "temperature"),),
            )


def _lengths(config: RunConfig) -> Iterator[Problem]:
    context = config.model.max_context
    if context is None:
        return
    fields: list[tuple[KeyPath, int | None]] = [(("rollout", "max_new_tokens"), config.rollout.max_new_tokens)]
    fields += [
        ((*place, "sampling", "max_new_tokens"), t.sampling.max_new_tokens) for place, t in config.all_task_sets()
    ]
    for path, length in fields:
        if length is not None and length >= context:
            yield Problem(
                path,
                f"is {length}, which leaves no room for a prompt in model.max_context {context}",
                "lower it, or raise model.max_context",
                also=(("model", "max_context"),),
            )


def _truncated_sampling(config: RunConfig, why: str) -> Iterator[Problem]:
    yield from _truncates(("rollout",), config.rollout, why)
    for index, task_set in enumerate(config.task_sets):
        yield from _truncates(("task_sets", index, "sampling"), task_set.sampling, why)


def _truncates(place: KeyPath, settings: RolloutConfig | SamplingOverrides, why: str) -> Iterator[Problem]:
    for name, value, off in (("top_k", settings.top_k, 0), ("top_p", settings.top_p, 1)):
        if value is not None and value != off:
            yield Problem((*place, name), f"is {value}: {why}", f"for training, leave it at {off}")


def _slow_numbers(config: RunConfig) -> Iterator[Problem]:
    if config.model.dtype is Dtype.BFLOAT16 and not config.model.device.startswith("cuda"):
        yield Problem(("model", "dtype"), "is bfloat16: on a CPU it is slower than float32", "use float32 on a CPU")
