"""Judgers: every name is known, every declared one is used, and composed ones can be put together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from loopwright.config.checks.idle import Idle
from loopwright.config.judgers import (
    BUILT_IN_JUDGERS,
    ComposedJudgerConfig,
    EndpointConfig,
    HttpJudgerConfig,
    JudgePer,
    LlmJudgerConfig,
    NativeJudgerConfig,
    PartConfig,
    made_of,
)
from loopwright.config.problems import KeyPath, Problem, suggest
from loopwright.config.schema import RunConfig


def _is_merged(config: RunConfig, part: PartConfig) -> bool:
    whole = [judger for judger in config.judgers.values() if isinstance(judger, ComposedJudgerConfig)]
    return any(part is one for judger in whole if judger.merge is not None for one in judger.parts.values())


OUR_SETTINGS = frozenset({"max_tokens", "messages", "model", "n", "response_format", "stream", "temperature"})
"""What a judge model is asked with by other means than `extra`, or cannot be asked with."""

IDLE = (
    Idle("judgers.*.merge", lambda _, judger: not judger.parts, "there are no parts"),
    Idle("judgers.*.parts.*.weight", _is_merged, "merge makes one score of the parts"),
    Idle("judgers.*.source_key", lambda _, judger: not judger.by_source, "there is no by_source"),
    Idle("judgers.*.default", lambda _, judger: not judger.by_source, "there is no by_source"),
    Idle(
        "judgers.*.timeout_seconds",
        lambda _, judger: isinstance(judger, ComposedJudgerConfig) and judger.merge is None,
        "it is for merge, and there is none",
    ),
)


def problems(config: RunConfig) -> Iterator[Problem]:
    yield from _judger_names(config)
    yield from _groups_where_members_are_judged(config)
    for name, judger in config.judgers.items():
        place = ("judgers", name)
        if isinstance(judger, ComposedJudgerConfig):
            yield from _composition(place, judger)
            yield from _cycle(config, place, name)
        elif isinstance(judger, HttpJudgerConfig):
            yield from _address((*place, "url"), judger.url)
        elif isinstance(judger, LlmJudgerConfig):
            yield from _address((*place, "base_url"), judger.base_url)
            yield from _questions(place, judger)
            yield from _extra(place, judger)


def warnings(config: RunConfig) -> Iterator[Problem]:
    yield from _unused_judgers(config)
    for name, judger in config.judgers.items():
        if isinstance(judger, EndpointConfig) and judger.deadline_seconds < judger.timeout_seconds:
            yield Problem(
                ("judgers", name, "timeout_seconds"),
                f"has no effect beyond deadline_seconds ({judger.deadline_seconds:g}), which ends a judgement before",
                "lower it, or raise deadline_seconds",
            )


def _judger_names(config: RunConfig) -> Iterator[Problem]:
    known = sorted({*config.judgers, *BUILT_IN_JUDGERS})
    for place, name in config.named_judgers():
        if name not in known:
            remedy = suggest(name, known, "declare it under judgers; known judgers")
            yield Problem(place, f"there is no judger {name!r}", remedy, also=(("judgers", ""),))


def _groups_where_members_are_judged(config: RunConfig) -> Iterator[Problem]:
    for place, name in config.named_judgers():
        judger = config.judgers.get(name)
        if not isinstance(judger, NativeJudgerConfig) or judger.per is not JudgePer.GROUP or place[0] == "task_sets":
            continue
        if place[0] == "eval":
            why = "evaluation scores each rollout by itself, so that its numbers can be compared from step to step"
        else:
            why = "a composed judger scores each rollout by itself"
        also = (("judgers", name, "per"),)
        yield Problem(place, f"{name!r} judges whole groups, but {why}", "name a judger with per: member", also=also)


def _composition(place: KeyPath, judger: ComposedJudgerConfig) -> Iterator[Problem]:
    if bool(judger.parts) == bool(judger.by_source):
        what = "has both parts and by_source" if judger.parts else "has neither parts nor by_source"
        yield Problem(place, what, "give it parts to use several judgers at once, or by_source to choose one")


def _cycle(config: RunConfig, place: KeyPath, name: str) -> Iterator[Problem]:
    """A judger that is made of itself, by whatever detour; each one on the way says so itself."""
    if name in made_of([name], config.judgers):
        yield Problem(place, "is made of itself", "make it of other judgers", also=(("judgers", ""),))


def _address(place: KeyPath, url: str) -> Iterator[Problem]:
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        yield Problem(place, f"{url!r} is no address", "write it as http://host:port/path or https://host/path")
    elif parts.username or parts.password:
        yield Problem(place, "holds a password", "put it into an environment variable, and name that as api_key_env")


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (it is read when it is asked for)
    except ValueError:
        return None
    return parts


def _questions(place: KeyPath, judger: LlmJudgerConfig) -> Iterator[Problem]:
    if judger.min_score >= judger.max_score:
        yield Problem(
            (*place, "min_score"),
            f"is {judger.min_score:g}, not below max_score ({judger.max_score:g})",
            "lower it, or raise max_score",
            also=((*place, "max_score"),),
        )
    if judger.prompt is not None and judger.prompt_file is not None:
        yield Problem((*place, "prompt"), "is given, and so is prompt_file", "remove one of them")
    elif judger.prompt is not None and "{answer}" not in judger.prompt:
        yield Problem((*place, "prompt"), "does not show the answer to the judge", "put {answer} where it is to stand")


def _extra(place: KeyPath, judger: LlmJudgerConfig) -> Iterator[Problem]:
    for setting in judger.extra:
        if setting in OUR_SETTINGS:
            yield Problem(
                (*place, "extra", setting), "is sent by the judger itself", "remove it; see the judger's own settings"
            )
    try:
        json.dumps(judger.extra, allow_nan=False)
    except (TypeError, ValueError):
        yield Problem((*place, "extra"), "holds what JSON cannot say", "use texts, finite numbers, lists and mappings")


def _unused_judgers(config: RunConfig) -> Iterator[Problem]:
    used = {name for _, name in config.named_judgers()}
    for name in config.judgers:
        if name not in used:
            yield Problem(
                ("judgers", name),
                "has no effect: no agent names it",
                "remove it, or name it as an agent's judger",
            )
