"""Layers: default < file < environment < command line. Each value remembers which layer gave it.

The layers are merged once, as plain values, before validation. So what is validated is what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from loopwright.config.problems import Key, KeyPath, Problem, dotted
from loopwright.config.yaml_text import parse_yaml

ENV_PREFIX = "LOOPWRIGHT_"
ENV_SEPARATOR = "__"


class Layer(StrEnum):
    """Who gave a value. A later layer wins."""

    DEFAULT = "default"
    FILE = "file"
    PYTHON = "Python"
    """A program that called `open_run`: its config stands for the file, its overrides for the command line."""
    ENVIRONMENT = "env"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Source:
    """A layer, and the place in it: `run.yaml:12`, or the name of a variable. `was` is the old key that the user
    wrote."""

    layer: Layer
    detail: str = ""
    was: str = ""

    def __str__(self) -> str:
        place = self.detail if self.layer is Layer.FILE else f"{self.layer} {self.detail}".rstrip()
        return f"{place}, {self.was}" if self.was else place


DEFAULT = Source(Layer.DEFAULT)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One setting from outside the file."""

    path: KeyPath
    value: Any
    source: Source


def assignments_from_env(env: Mapping[str, str]) -> Iterator[Assignment | Problem]:
    """`LOOPWRIGHT_ROLLOUT__TEMPERATURE=0.7`. Names without a double underscore are not settings."""
    for name in sorted(env):
        if name.startswith(ENV_PREFIX) and ENV_SEPARATOR in name:
            keys = name.removeprefix(ENV_PREFIX).lower().split(ENV_SEPARATOR)
            yield _assignment(keys, env[name], Source(Layer.ENVIRONMENT, name))


def assignments_from_overrides(overrides: Iterable[str]) -> Iterator[Assignment | Problem]:
    """`rollout.temperature=0.7`, `task_sets.0.weight=2`."""
    source = Source(Layer.COMMAND_LINE)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            yield Problem((), f"{override!r} sets nothing (command line)", "write it as section.field=value")
        else:
            yield _assignment(name.strip().split("."), text, source)


def assignments_from_python(overrides: Mapping[str, Any]) -> Iterator[Assignment]:
    """`{"rollout.temperature": 0.7}`, with values that are plain data already."""
    for name, value in overrides.items():
        yield Assignment(key_path(name.split(".")), value, Source(Layer.PYTHON))


def key_path(keys: Iterable[str]) -> KeyPath:
    """List items are numbered from 0."""
    return tuple(int(key) if key.isdecimal() else key for key in keys)


def _assignment(keys: Iterable[str], text: str, source: Source) -> Assignment | Problem:
    path = key_path(keys)
    try:
        return Assignment(path, parse_yaml(text).values, source)
    except yaml.YAMLError:
        return Problem(path, f"{text!r} is not valid YAML", "put quotes around the value", source=str(source))


@dataclass(frozen=True, slots=True)
class Layered:
    """Merged values, and the source of every leaf that is not a default."""

    values: dict[str, Any]
    sources: dict[KeyPath, Source]

    def assign(self, assignment: Assignment) -> Problem | None:
        """Put a value in its place, making sections that are not there yet."""
        *parents, last = assignment.path
        holder: Any = self.values
        for depth, key in enumerate(parents):
            if _get(holder, key) is None:
                child: Any = [] if isinstance(assignment.path[depth + 1], int) else {}
                if not _put(holder, key, child):
                    return _no_place(assignment, depth)
            holder = _get(holder, key)
        if not _put(holder, last, assignment.value):
            return _no_place(assignment, len(parents))
        self._mark(assignment)
        return None

    def source_near(self, path: KeyPath) -> Source:
        """The source of the field, or of the nearest section around it if the field is missing."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.sources:
                return self.sources[path[:depth]]
            for known, source in self.sources.items():
                if known[:depth] == path[:depth]:
                    return source
        return DEFAULT

    def _mark(self, assignment: Assignment) -> None:
        path, depth = assignment.path, len(assignment.path)
        for stale in [known for known in self.sources if known[:depth] == path]:
            del self.sources[stale]
        for leaf, _ in leaves(self.values):
            if leaf[:depth] == path or path[: len(leaf)] == leaf:
                self.sources[leaf] = assignment.source


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every field with its value. A list of plain values is one field, and so is an empty section."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, child in enumerate(value):
            yield from leaves(child, (*path, index))
    else:
        yield path, value


def _get(holder: Any, key: Key) -> Any:
    if isinstance(holder, dict):
        return holder.get(str(key))
    if isinstance(holder, list) and isinstance(key, int) and key < len(holder):
        return holder[key]
    return None


def _put(holder: Any, key: Key, value: Any) -> bool:
    """Whether the holder has a place for `key`; a list takes at most one more item."""
    if isinstance(holder, dict):
        holder[str(key)] = value
    elif isinstance(holder, list) and isinstance(key, int) and key < len(holder):
        holder[key] = value
    elif isinstance(holder, list) and key == len(holder):
        holder.append(value)
    else:
        return False
    return True


def _no_place(assignment: Assignment, depth: int) -> Problem:
    parent, key = dotted(assignment.path[:depth]), assignment.path[depth]
    return Problem(
        assignment.path,
        f"{parent} has no place for {key!r}",
        f"look at what {parent} holds with `loopwright config`; list items are numbered from 0",
        source=str(assignment.source),
    )
