"""Production and training at the same time: which kinds go together, and what is done at a weight update."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.placement import PlacedSection
from loopwright.config.problems import KeyPath, Problem, dotted
from loopwright.config.schema import ProduceConfig, RolloutConfig, RunConfig
from loopwright.types import BufferKind, ImportanceKind, PauseMode, ProduceKind, Stale, TrainerKind


def _is_sync(config: RunConfig, _: object) -> bool:
    return config.produce.kind is ProduceKind.SYNC


def _is_colocated(config: RunConfig, _: object) -> bool:
    return config.trainer.kind is TrainerKind.COLOCATE


def _retries_nothing(config: RunConfig, produce: ProduceConfig) -> bool:
    return not _is_sync(config, produce) and produce.stale is not Stale.RETRY


def _makes_no_more(config: RunConfig, produce: ProduceConfig) -> bool:
    return _is_colocated(config, produce) and produce.over_sample == 0


IDLE = (
    *(
        Idle(f"produce.{name}", _is_sync, "produce.kind is sync", "remove it, or set produce.kind to async")
        for name in ("max_staleness", "stale", "max_expiries", "in_flight", "over_sample", "tail_batch")
    ),
    *(
        Idle(f"produce.{name}", _retries_nothing, "it is for produce.stale: retry", "remove it, or set produce.stale")
        for name in ("max_expiries", "tail_batch")
    ),
    Idle(
        "produce.kind",
        _makes_no_more,
        "a colocated step makes no more groups than it trains",
        "set produce.over_sample, or trainer.kind to disaggregated",
    ),
    Idle(
        "produce.over_sample",
        lambda config, _: not _is_sync(config, _) and not _is_colocated(config, _),
        "a disaggregated run makes groups ahead as far as produce.max_staleness allows",
    ),
    *(
        Idle(f"trainer.{name}", _is_colocated, "a colocated engine has the learner's own weights")
        for name in ("sync", "sync_interval")
    ),
    Idle(
        "trainer.sync",
        lambda config, trainer: not _is_colocated(config, trainer) and trainer.sync_interval == 1,
        "trainer.sync_interval is 1: every step publishes its weights",
    ),
    Idle(
        "rollout.engine.threads",
        lambda config, engine: engine.processes(config.trainer.kind) == 0,
        "the engine shares the learner's threads",
        "remove it, or set model.threads",
    ),
    Idle(
        "task_sets.*.produce",
        lambda config, task_set: _is_sync(config, task_set) and task_set.produce is ProduceKind.SYNC,
        "produce.kind is sync",
    ),
    Idle("eval.task_sets.*.produce", lambda config, _: True, "an evaluation is made by the newest weights"),
    Idle("buffer.archive", lambda _, buffer: buffer.kind is BufferKind.MEMORY, "nothing is kept on disk"),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _kinds(config)
    yield from _deterministic(config)
    yield from _in_flight(config)
    yield from _retries(config)
    yield from _intervals(config)
    yield from _silence(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _too_far_ahead(config)
    yield from _uncorrected(config)


def _kinds(config: RunConfig) -> Iterator[Problem]:
    if config.trainer.kind is TrainerKind.DISAGGREGATED and config.produce.kind is ProduceKind.SYNC:
        yield Problem(
            ("trainer", "kind"),
            "is disaggregated, but produce.kind is sync: sampling and training would take turns",
            "set produce.kind to async",
            also=(("produce", "kind"),),
        )
    if not _is_colocated(config, config) and config.rollout.engine.processes(config.trainer.kind) == 0:
        yield Problem(
            ("rollout", "engine", "num_engines"),
            "is 0, but trainer.kind is disaggregated: an engine in the learner's process cannot sample while it trains",
            "set it to 1 or more, or trainer.kind to colocate",
            also=(("trainer", "kind"),),
        )
    for index, task_set in enumerate(config.task_sets):
        if task_set.produce is ProduceKind.ASYNC and config.produce.kind is ProduceKind.SYNC:
            yield Problem(
                ("task_sets", index, "produce"),
                "is async, but produce.kind is sync: the run has no horizon within which groups are made ahead",
                "set produce.kind to async, and produce: sync for the other task sets",
                also=(("produce", "kind"),),
            )


def _deterministic(config: RunConfig) -> Iterator[Problem]:
    count = (
        "num_actors"
        if isinstance(config.rollout.engine, PlacedSection) and config.rollout.engine.num_actors
        else "num_engines"
    )
    fields: tuple[tuple[KeyPath, object, object], ...] = (
        (("trainer", "kind"), config.trainer.kind, TrainerKind.COLOCATE),
        (("produce", "kind"), config.produce.kind, ProduceKind.SYNC),
        (("rollout", "engine", "kind"), config.rollout.engine.kind, "torch"),
        (("rollout", "engine", count), config.rollout.engine.processes(TrainerKind.COLOCATE), 0),
    )
    for path, value, needed in fields if config.trainer.deterministic else ():
        if value != needed:
            yield Problem(
                ("trainer", "deterministic"),
                f"is on, but {dotted(path)} is {value}: what is sampled by which weights depends on timing then",
                f"switch it off, or set {dotted(path)} to {needed}",
                also=(path,),
            )


def _silence(config: RunConfig) -> Iterator[Problem]:
    silence, stall = config.rollout.worker_silence_seconds, config.trainer.stall_seconds
    # The default is no choice: a stored config names every setting, and follows trainer.stall_seconds all the same.
    is_default = silence == RolloutConfig.model_fields["worker_silence_seconds"].default
    if silence >= stall and not is_default:
        yield Problem(
            ("rollout", "worker_silence_seconds"),
            f"is {silence:g}, but trainer.stall_seconds is {stall:g}: it would end before a lost worker is noticed",
            "set it below trainer.stall_seconds",
            also=(("trainer", "stall_seconds"),),
        )


def _in_flight(config: RunConfig) -> Iterator[Problem]:
    produce = config.produce
    if _is_colocated(config, produce) and not _is_sync(config, produce) and produce.in_flight is PauseMode.KEEP:
        yield Problem(
            ("produce", "in_flight"),
            "is keep, but trainer.kind is colocate: nothing can be sampled while the same parameters are trained",
            "use drain or abort",
            also=(("trainer", "kind"),),
        )
    engine = config.rollout.engine
    if not _is_sync(config, produce) and produce.in_flight is PauseMode.KEEP and not engine.keeps_requests:
        yield Problem(
            ("produce", "in_flight"),
            f"is keep, but rollout.engine.kind is {engine.kind}: its requests would go on before the new weights are "
            "proven",
            "use abort or drain",
            also=(("rollout", "engine", "kind"),),
        )


def _retries(config: RunConfig) -> Iterator[Problem]:
    produce = config.produce
    if not _is_sync(config, produce) and produce.stale is Stale.RETRY and produce.tail_batch == "off":
        yield Problem(
            ("produce", "tail_batch"),
            "is off, but produce.stale is retry: expired groups would never be made again",
            "set it to immediate or to a number, or produce.stale to mask",
            also=(("produce", "stale"),),
        )


def _intervals(config: RunConfig) -> Iterator[Problem]:
    """Evaluation and checkpoints need engines that have the weights of that step, so they need a sync at that step."""
    sync = config.trainer.sync_interval
    fields: list[tuple[KeyPath, int]] = [(("trainer", "checkpoint_every"), config.trainer.checkpoint_every)]
    if config.eval is not None:
        fields.append((("eval", "every"), config.eval.every))
    for path, every in fields if config.trainer.kind is TrainerKind.DISAGGREGATED else ():
        # An interval beyond the last step never comes; the last step always syncs.
        if every % sync and every <= config.trainer.steps:
            below = every // sync * sync
            nearest = f"{below} or {below + sync}" if below else f"{sync}"
            yield Problem(
                path,
                f"is {every}, which is no multiple of trainer.sync_interval ({sync})",
                f"set it to {nearest}",
                also=(("trainer", "sync_interval"),),
            )


def _too_far_ahead(config: RunConfig) -> Iterator[Problem]:
    """A group waits for as many steps as there are batches before it. So no group is started beyond the horizon."""
    produce = config.produce
    makes_ahead = not _is_sync(config, produce) and _is_colocated(config, produce)
    if makes_ahead and produce.over_sample > produce.max_staleness:
        yield Problem(
            ("produce", "over_sample"),
            f"is {produce.over_sample:g}, more than produce.max_staleness ({produce.max_staleness}): "
            "no more groups are started than can be trained before they are too old",
            f"set it to {produce.max_staleness} or less, or produce.max_staleness to {math.ceil(produce.over_sample)}",
            also=(("produce", "max_staleness"),),
        )


def _uncorrected(config: RunConfig) -> Iterator[Problem]:
    off_policy = config.produce.kind is ProduceKind.ASYNC and config.produce.max_staleness > 0
    if off_policy and config.learner.importance.kind is ImportanceKind.OFF:
        yield Problem(
            ("learner", "importance", "kind"),
            "is off, but produce.kind is async: tokens of older weights are trained as if the newest had sampled them",
            "use truncate or mask",
        )
