"""The learner and its batches."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.checks.tasks import no_signal_places
from loopwright.config.engines import VLLM_RANKS, TorchEngineConfig, VllmEngineConfig
from loopwright.config.imports import is_object_name
from loopwright.config.learner import ImportanceConfig, LossConfig, PassAtK, PythonLoss
from loopwright.config.problems import KeyPath, Problem, dotted
from loopwright.config.schema import RunConfig
from loopwright.types import Aggregate, ImportanceKind, KlKind

COMPARES_ACROSS_GROUPS = ("reinforce_pp", "python")
"""Advantages that may be other than 0 in a group of one, or of equal rewards."""


def _never_clips(config: RunConfig, loss: LossConfig) -> bool:
    return config.learner.mini_batches == 1


def _is_off(config: RunConfig, importance: ImportanceConfig) -> bool:
    return importance.kind is ImportanceKind.OFF


IDLE = (
    Idle("learner.placement", lambda _, learner: learner.ranks == 1, "the learner has one rank, in the driver"),
    Idle(
        "learner.max_restarts",
        lambda _, learner: learner.ranks == 1,
        "one rank is in the driver, and is lost with it",
        "remove it; the same command goes on from the last checkpoint",
    ),
    *(
        Idle(
            f"learner.loss.{name}",
            _never_clips,
            "with one mini-batch the ratio is exactly 1",
            "remove it, or raise learner.mini_batches",
        )
        for name in ("clip_low", "clip_high", "dual_clip")
    ),
    Idle(
        "learner.loss.constant_length",
        lambda _, loss: loss.aggregate is not Aggregate.CONSTANT,
        "it is for learner.loss.aggregate: constant",
    ),
    *(
        Idle(f"learner.importance.{name}", _is_off, "learner.importance.kind is off", "remove it, or the kind")
        for name in ("level", "cap", "floor")
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _devices(config)
    yield from _engines_on_actors(config)
    yield from _ranks(config)
    yield from _batches(config)
    yield from _importance_bounds(config)
    yield from _adapters(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _no_signal(config)
    yield from _dropped_lessons(config)
    yield from _idle_kl(config)


def _devices(config: RunConfig) -> Iterator[Problem]:
    model, engine = config.model.device, config.rollout.engine.embedded.device
    if config.trainer.deterministic and model.startswith("cuda"):
        yield Problem(
            ("model", "device"),
            f"is {model}, and trainer.deterministic is on: nobody has seen a GPU repeat a run bit for bit",
            "set it to cpu, or to auto, which is the CPU in a deterministic run",
            also=(("trainer", "deterministic"),),
        )
    if engine not in (None, model) and config.rollout.engine.processes(config.trainer.kind) == 0:
        yield Problem(
            ("rollout", "engine", "device"),
            f"is {engine}, but the engine computes with the learner's own parameters, on {model}",
            "remove it, or set rollout.engine.num_engines: 1 for an engine in a process of its own",
            also=(("model", "device"),),
        )


def _engines_on_actors(config: RunConfig) -> Iterator[Problem]:
    engine = config.rollout.engine
    if not isinstance(engine, TorchEngineConfig) or not engine.num_actors or engine.num_gpus_per_actor:
        return
    if (device := engine.device or config.model.device).startswith("cuda"):
        yield Problem(
            ("rollout", "engine", "num_gpus_per_actor"),
            f"is 0, and the engine computes on {device}: an actor sees the GPUs that it reserves",
            "set it to 1, or set rollout.engine.device: cpu",
            also=(("rollout", "engine", "device") if engine.device else ("model", "device"),),
        )


def _ranks(config: RunConfig) -> Iterator[Problem]:
    learner, model, place = config.learner, config.model.device, ("learner", "ranks")
    if learner.ranks == 1:
        return
    if config.trainer.deterministic:
        yield Problem(
            place,
            f"is {learner.ranks}, and trainer.deterministic is on: it needs the engine inside the driver, and its "
            "weights are in the ranks",
            "set it to 1, or switch trainer.deterministic off",
            also=(("trainer", "deterministic"),),
        )
    elif config.rollout.engine.processes(config.trainer.kind) == 0:
        yield Problem(
            place,
            f"is {learner.ranks}, and the engine computes with the driver's own weights, which are in the ranks",
            "set rollout.engine.num_engines: 1 for an engine in a process of its own, which pauses while the ranks "
            "train",
            also=(("rollout", "engine", "num_engines"),),
        )
    if learner.is_on_actors and model.startswith("cuda") and not learner.num_gpus_per_rank:
        yield Problem(
            ("learner", "num_gpus_per_rank"),
            f"is 0, and model.device is {model}: an actor sees the GPUs that it reserves",
            "set it to 1",
            also=(("model", "device"),),
        )
    if learner.is_on_actors and learner.num_gpus_per_rank not in (0, 1):
        yield Problem(
            ("learner", "num_gpus_per_rank"),
            f"is {learner.num_gpus_per_rank:g}: a rank computes on one GPU of its own, and NCCL refuses two ranks on "
            "one",
            "set it to 1, or to 0 for ranks on CPUs",
        )
    if model.startswith("cuda:"):
        yield Problem(
            ("model", "device"),
            f"is {model}, and learner.ranks is {learner.ranks}: each rank has a GPU of its own",
            "set it to cuda: rank r takes the r-th GPU; CUDA_VISIBLE_DEVICES says which ones are seen",
            also=(place,),
        )
    if isinstance(learner.loss, PythonLoss) and is_object_name(learner.loss.path):
        yield Problem(
            ("learner", "loss", "path"),
            f"is an object of this program, and learner.ranks is {learner.ranks}: ranks are processes of their own, "
            "which cannot import it",
            "put the loss into a file or a module, and give its import path",
            also=(place,),
        )


def _batches(config: RunConfig) -> Iterator[Problem]:
    limits: list[tuple[KeyPath, int | None, KeyPath, int]] = [
        (
            ("produce", "min_members"),
            config.produce.min_members,
            ("rollout", "samples_per_task"),
            config.rollout.samples_per_task,
        ),
        (
            ("learner", "mini_batches"),
            config.learner.mini_batches,
            ("trainer", "groups_per_step"),
            config.trainer.groups_per_step,
        ),
        (("learner", "warmup_steps"), config.learner.warmup_steps, ("trainer", "steps"), config.trainer.steps),
    ]
    if isinstance(config.learner.advantage, PassAtK):
        members: KeyPath = ("rollout", "samples_per_task")
        limits.append(
            (("learner", "advantage", "k"), config.learner.advantage.k, members, config.rollout.samples_per_task)
        )
    if config.learner.sft:
        examples: KeyPath = ("learner", "sft", "examples_per_step")
        limits.append(
            (("learner", "mini_batches"), config.learner.mini_batches, examples, config.learner.sft.examples_per_step)
        )
    for path, value, limit_path, limit in limits:
        if value is not None and value > limit:
            other = dotted(limit_path)
            yield Problem(
                path, f"is {value}, more than {other} ({limit})", f"lower it, or raise {other}", also=(limit_path,)
            )


def _importance_bounds(config: RunConfig) -> Iterator[Problem]:
    importance = config.learner.importance
    if importance.floor > importance.cap:
        yield Problem(
            ("learner", "importance", "floor"),
            f"is {importance.floor}, more than learner.importance.cap ({importance.cap})",
            "lower it, or raise learner.importance.cap",
            also=(("learner", "importance", "cap"),),
        )


def _adapters(config: RunConfig) -> Iterator[Problem]:
    lora, engine = config.learner.lora, config.rollout.engine
    if lora is None or not isinstance(engine, VllmEngineConfig) or not engine.takes_adapters:
        return
    if lora.rank > VLLM_RANKS[-1]:
        yield Problem(
            ("learner", "lora", "rank"),
            f"is {lora.rank}, and vLLM serves adapters up to rank {VLLM_RANKS[-1]}",
            "lower it, or sample with another kind of engine",
            also=(("rollout", "engine", "kind"),),
        )


def _no_signal(config: RunConfig) -> Iterator[Problem]:
    advantage = config.learner.advantage.kind
    if config.rollout.samples_per_task == 1 and advantage not in COMPARES_ACROSS_GROUPS:
        yield Problem(
            ("rollout", "samples_per_task"),
            f"is 1: {advantage} compares the members of a group, and a lone one teaches nothing",
            "set it to 2 or more; 8 is usual",
        )


def _dropped_lessons(config: RunConfig) -> Iterator[Problem]:
    advantage = config.learner.advantage.kind
    for path in no_signal_places(config) if advantage in COMPARES_ACROSS_GROUPS else ():
        yield Problem(
            path,
            f"is no_signal, but learner.advantage is {advantage}: it may compare answers across groups, and then the "
            "lessons of groups of equals are dropped",
            "remove the filter, or choose an advantage that compares within a group",
        )


def _idle_kl(config: RunConfig) -> Iterator[Problem]:
    kl = config.learner.kl
    if kl is not None and kl.kind is KlKind.K1:
        yield Problem(
            ("learner", "kl", "kind"),
            "is k1, which holds nothing back: as a loss, its gradient is zero on average",
            "use k3 or k2",
        )
