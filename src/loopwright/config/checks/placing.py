"""Placement: what may be on actors, and which settings of it go together. A role is told by its place in the config."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loopwright.config.base import sections
from loopwright.config.checks.idle import Idle
from loopwright.config.engines import VllmEngineConfig
from loopwright.config.placement import PER_ACTOR, PlacedSection, StrategyConfig
from loopwright.config.problems import KeyPath, Problem
from loopwright.config.schema import RunConfig
from loopwright.types import TrainerKind

PLACES = {
    "loops": ("task_sets.*.agent", "eval.task_sets.*.agent"),
    "judgers": ("judgers.*",),
    "engines": ("rollout.engine",),
    "gateway": ("gateway",),
}
"""Where the settings of each role are."""
DECIMALS = 4
"""Ray refuses a quantity with more of them."""
NO_ACTORS = "nothing of the run is on actors"


def _has_actors(config: RunConfig, role: str | None = None) -> bool:
    """Whether something of the run, or of this role, is on actors."""
    heads = {"loops": ("task_sets", "eval"), "judgers": ("judgers",), "engines": ("rollout",), "gateway": ("gateway",)}
    if role in (None, "ranks") and config.learner.is_on_actors:
        return True
    wanted = heads.get(role, ()) if role is not None else None
    return any(wanted is None or place[0] in wanted for place, one in _placed(config) if one.num_actors)


def _placed(config: RunConfig) -> Iterator[tuple[KeyPath, PlacedSection]]:
    yield from ((place, section) for place, section in sections(config) if isinstance(section, PlacedSection))


def _unused(role: str) -> Callable[[RunConfig, object], bool]:
    return lambda config, _: _has_actors(config) and not _has_actors(config, role)


IDLE = (
    *(
        Idle(f"{place}.{name}", lambda _, placed: not placed.num_actors, "it is not on actors", "set num_actors too")
        for places in PLACES.values()
        for place in places
        for name in PER_ACTOR
    ),
    *(
        Idle(name, lambda config, _: not _has_actors(config), NO_ACTORS, "set num_actors where you want them")
        for name in ("cluster.address", "cluster.num_cpus", "cluster.strategy", "cluster.labels")
    ),
    *(
        Idle(f"cluster.strategy.{role}", _unused(role), f"no {role} are on actors")
        for role in StrategyConfig.model_fields
    ),
    *(Idle(f"cluster.labels.{role}", _unused(role), f"no {role} are on actors") for role in ("ranks", *PLACES)),
    *(
        Idle(
            f"learner.{name}",
            lambda _, learner: not learner.is_on_actors,
            "ranks are not on actors",
            "set learner.placement: ray",
        )
        for name in ("num_cpus_per_rank", "num_gpus_per_rank")
    ),
    Idle(
        "cluster.strategy.engines",
        lambda config, _: config.rollout.nodes is not None and _has_actors(config, "engines"),
        "rollout.nodes says where they are",
    ),
    Idle("judgers.*.num_actors", lambda _, judger: judger.expects_reward, "it computes nothing"),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _engines(config)
    yield from _nodes(config)
    yield from _gateway(config)
    yield from _loops_that_must_repeat(config)
    for place, placed in _placed(config):
        for name in ("num_cpus_per_actor", "num_gpus_per_actor"):
            if (value := getattr(placed, name)) != round(value, DECIMALS):
                yield Problem(
                    (*place, name),
                    f"is {value!r}: Ray counts in steps of {10**-DECIMALS:g}",
                    f"round it, for example to {max(round(value, DECIMALS), 10**-DECIMALS):g}",
                )
        if placed.num_gpus_per_actor > 1 and placed.num_gpus_per_actor % 1:
            yield Problem(
                (*place, "num_gpus_per_actor"),
                f"is {placed.num_gpus_per_actor:g}: an actor has a part of one GPU, or whole ones",
                "make it a whole number, or at most 1",
            )


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _servers_without_gpus(config)


def _servers_without_gpus(config: RunConfig) -> Iterator[Problem]:
    engine = config.rollout.engine
    if isinstance(engine, VllmEngineConfig) and engine.num_actors and not engine.num_gpus_per_actor:
        yield Problem(
            ("rollout", "engine", "num_gpus_per_actor"),
            "is 0, so the servers see no GPU: only vLLM's build for CPUs starts",
            "set it to the GPUs of one server, unless that build is meant",
        )


def _engines(config: RunConfig) -> Iterator[Problem]:
    engine = config.rollout.engine
    if not isinstance(engine, PlacedSection) or not engine.num_actors:
        return
    for name, elsewhere in (("num_engines", "started by the driver"), ("urls", "already running")):
        value = getattr(engine, name, None)
        if value is not None and value != ():
            yield Problem(
                ("rollout", "engine", "num_actors"),
                f"is {engine.num_actors}, and {name} is set too: engines are on actors, or {elsewhere}",
                "remove one of them",
                also=(("rollout", "engine", name),),
            )


def _nodes(config: RunConfig) -> Iterator[Problem]:
    nodes, engine = config.rollout.nodes, config.rollout.engine
    if nodes is None:
        return
    place, count = ("rollout", "nodes"), engine.num_actors if isinstance(engine, PlacedSection) else 0
    if config.trainer.kind is not TrainerKind.DISAGGREGATED:
        yield Problem(
            place,
            f"is {nodes}, but trainer.kind is {config.trainer.kind}: nodes of their own are for engines that sample "
            "while the learner trains",
            "set trainer.kind to disaggregated, or remove it",
            also=(("trainer", "kind"),),
        )
    if not count:
        yield Problem(
            place,
            f"is {nodes}, but rollout.engine.num_actors is not set: it says on which nodes those actors are",
            "set rollout.engine.num_actors (kinds torch and vllm have it), or remove it",
            also=(("rollout", "engine", "num_actors"),),
        )
    elif nodes and count % nodes:
        below = count // nodes * nodes
        yield Problem(
            ("rollout", "engine", "num_actors"),
            f"is {count}, which is no multiple of rollout.nodes ({nodes}): every node gets the same number",
            f"set it to {f'{below} or ' if below else ''}{below + nodes}",
            also=(place,),
        )
    if nodes and config.cluster.address is None:
        yield Problem(
            place,
            f"is {nodes}, but cluster.address is not set: a cluster that the run starts has the driver's node alone",
            "set cluster.address, or rollout.nodes to 0",
            also=(("cluster", "address"),),
        )


def _gateway(config: RunConfig) -> Iterator[Problem]:
    if config.gateway.num_actors and config.gateway.url is not None:
        yield Problem(
            ("gateway", "num_actors"),
            "is 1, and url is set too: the run's own gateway is on an actor, or another one is used",
            "remove one of them",
            also=(("gateway", "url"),),
        )


def _loops_that_must_repeat(config: RunConfig) -> Iterator[Problem]:
    """Agents on several actors share the engine in an order that differs between runs. A judger sees one rollout or
    group at a time, so it makes no difference where it is."""
    for place, task_set in config.all_task_sets() if config.trainer.deterministic else ():
        if task_set.agent.num_actors:
            yield Problem(
                (*place, "agent", "num_actors"),
                f"is {task_set.agent.num_actors}, but trainer.deterministic is set: the order of its calls varies",
                "set it to 0, or switch trainer.deterministic off",
                also=(("trainer", "deterministic"),),
            )
