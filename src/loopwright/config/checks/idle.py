"""Settings without effect: those that their section reports, and rules that say when a field has no effect.

Only a field that differs from its default is reported, so a config may spell out every default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from loopwright.config.base import Section, sections
from loopwright.config.problems import Key, KeyPath, Problem
from loopwright.config.schema import RunConfig


@dataclass(frozen=True, slots=True)
class Idle:
    """Field `name` has no effect if `when` is true, given the config and the section that has the field.

    `*` in a name stands for every item.
    """

    name: str
    when: Callable[[RunConfig, Any], bool]
    because: str
    remedy: str = "remove it"


def idle_settings(config: RunConfig, rules: Iterable[Idle]) -> Iterator[Problem]:
    for place, section in sections(config):
        for path, because in section.idle():
            if _is_changed(_at(section, path[:-1]), str(path[-1])):
                yield Problem((*place, *path), f"has no effect: {because}", "remove it")
    for rule in rules:
        *way, field = rule.name.split(".")
        for path, section in _matching(config, (), way):
            if _is_changed(section, field) and rule.when(config, section):
                yield Problem((*path, field), f"has no effect: {rule.because}", rule.remedy)


def _matching(value: Any, path: KeyPath, way: list[str]) -> Iterator[tuple[KeyPath, Section]]:
    """The sections that a path of names and stars leads to, if they exist."""
    if not way:
        if isinstance(value, Section):
            yield path, value
        return
    name, rest = way[0], way[1:]
    if name != "*":
        yield from _matching(getattr(value, name, None), (*path, name), rest)
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value or ()):
        yield from _matching(item, (*path, key), rest)


def _at(section: Section, way: Iterable[Key]) -> Any:
    value: Any = section
    for key in way:
        value = getattr(value, str(key)) if isinstance(value, Section) else value[key]
    return value


def _is_changed(section: Section, field: str) -> bool:
    info = type(section).model_fields.get(field)
    if info is None:
        return False
    return info.is_required() or getattr(section, field) != info.get_default(call_default_factory=True)
