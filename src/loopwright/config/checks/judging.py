"""Judgers: every name is known, every declared one is used, and composed ones can be put together."""

from __future__ import annotations

from collections.abc import Iterator

from loopwright.config.checks.idle import Idle
from loopwright.config.judgers import BUILT_IN_JUDGERS, made_of
from loopwright.config.problems import KeyPath, Problem, suggest
from loopwright.config.schema import RunConfig

IDLE: tuple[Idle, ...] = ()


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _judger_names(config)
    yield from _groups_where_members_are_judged(config)
    yield from _rewards_that_nobody_brings(config)
    yield from _parts_on_actors_of_their_own(config)
    for name in config.judgers:
        yield from _cycle(config, ("judgers", name), name)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _unused_judgers(config)


def _judger_names(config: RunConfig) -> Iterator[Problem]:
    known = sorted({*config.judgers, *BUILT_IN_JUDGERS})
    for place, name in config.named_judgers():
        if name not in known:
            remedy = suggest(name, known, "declare it under judgers; known judgers")
            yield Problem(place, f"there is no judger {name!r}", remedy, also=(("judgers", ""),))


def _groups_where_members_are_judged(config: RunConfig) -> Iterator[Problem]:
    for place, name in config.named_judgers():
        judger = config.judgers.get(name)
        if judger is None or not judger.judges_groups or place[0] == "task_sets":
            continue
        if place[0] == "eval":
            why = "evaluation scores each rollout by itself, so that its numbers can be compared from step to step"
        else:
            why = "a composed judger scores each rollout by itself"
        also = (("judgers", name, "per"),)
        yield Problem(place, f"{name!r} judges whole groups, but {why}", "name a judger with per: member", also=also)


def _parts_on_actors_of_their_own(config: RunConfig) -> Iterator[Problem]:
    """A composed judger on actors holds its parts there. A part with actors of its own would be opened twice."""
    for name, judger in config.judgers.items():
        parts = sorted(made_of([name], config.judgers)) if judger.num_actors else ()
        for part in parts:
            if part != name and part in config.judgers and config.judgers[part].num_actors:
                yield Problem(
                    ("judgers", part, "num_actors"),
                    f"{part!r} is a part of {name!r}, whose actors hold their parts themselves",
                    f"remove it; or give {name!r} no actors, and its parts their own",
                    also=(("judgers", name, "num_actors"),),
                )


def _rewards_that_nobody_brings(config: RunConfig) -> Iterator[Problem]:
    known = {**BUILT_IN_JUDGERS, **config.judgers}
    # A program that brings none is reported by its agent.
    programs = {(*place, "agent", "judger") for place, one in config.all_task_sets() if one.agent.is_program}
    for place, name in config.named_judgers():
        if name in known and known[name].expects_reward and place not in programs:
            remedy = "name a judger that scores it"
            yield Problem(place, f"{name!r} is for programs that bring their reward along", remedy)


def _cycle(config: RunConfig, place: KeyPath, name: str) -> Iterator[Problem]:
    """A judger that is made of itself, directly or through others. Each judger in the circle is reported."""
    if name in made_of([name], config.judgers):
        yield Problem(place, "is made of itself", "make it of other judgers", also=(("judgers", ""),))


def _unused_judgers(config: RunConfig) -> Iterator[Problem]:
    used = {name for _, name in config.named_judgers()}
    for name in config.judgers:
        if name not in used:
            yield Problem(
                ("judgers", name),
                "has no effect: no agent names it",
                "remove it, or name it as an agent's judger",
            )
