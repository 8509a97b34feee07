"""Turns Python objects in a program's config into text, so that a config is plain data and can be stored.

A function or class that can be imported becomes its import path, `package.module:name`, and is used as if the user had
written that. Any other object (a lambda, a closure, an instance, a function of a script or notebook) becomes
`object:` and its qualified name. Only the program that has the object can open the run again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.machinery import PathFinder
from typing import Any

from pydantic import BaseModel

from loopwright.config.base import needs_of
from loopwright.config.imports import OBJECT, USER_MODULE, Objects, is_object_name, no_such_object
from loopwright.config.needs import Outside
from loopwright.config.problems import KeyPath, Problem
from loopwright.config.schema import RunConfig

MAINS = ("__main__", "__mp_main__")

PLACES = (
    ("judgers", "*", "path"),
    ("agent", "path"),
    ("data", "path"),
    ("learner", "advantage", "path"),
    ("learner", "loss", "path"),
)
"""Where an object without an import path may stand, seen from a task set, its short form, or the top."""

SECTIONS: Mapping[tuple[str, ...], str] = {
    ("judgers", "*"): "native",
    ("data",): "python",
    ("learner", "advantage"): "python",
    ("learner", "loss"): "python",
}
"""Where an object may stand for a whole section, and the kind that the section then has."""

TASK_SETS = ((), ("eval",), ("task_sets", "*"), ("eval", "task_sets", "*"))
"""Where `agent` and `data` may stand."""


class ObjectNames:
    """Makes plain data of values that hold objects, and collects `objects` and `problems`."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}
        self.problems: list[Problem] = []

    def plain(self, value: Any, place: KeyPath = ()) -> Any:
        """`value`, which stands at `place` of a config, without objects."""
        match value:
            case None | bool() | int() | float():
                return value
            case Enum():
                return value.value
            case str():
                return str(value)
            case os.PathLike():
                return os.fspath(value)
            case BaseModel():
                return value.model_dump(mode="json")
            case Mapping():
                return {str(key): self.plain(inner, (*place, str(key))) for key, inner in value.items()}
            case list() | tuple():
                return [self.plain(inner, (*place, index)) for index, inner in enumerate(value)]
        if (kind := _section_kind(place)) is not None:
            return {"kind": kind, **_traits(kind, value), "path": self._named(value, (*place, "path"))}
        return self._named(value, place)

    def _named(self, value: object, place: KeyPath) -> str:
        path = import_path(value)
        if path is not None:
            return path
        name = f"{OBJECT}{qualified_name(value)}"
        if not _takes_objects(place):
            self.problems.append(
                Problem(
                    place,
                    f"is the Python object {qualified_name(value)}, and only data may stand here",
                    "give text, numbers, lists and mappings; a function that can be imported may stand wherever its "
                    "import path may",
                )
            )
            return name
        # Two lambdas have the same name.
        number = 1
        while self.objects.setdefault(_numbered(name, number), value) is not value:
            number += 1
        return _numbered(name, number)


def import_path(value: object) -> str | None:
    """The import path of the object, or None if it is not a top-level name of a module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module in MAINS or not name.isidentifier():
        return None
    holder = sys.modules.get(module)
    if holder is None or getattr(holder, name, None) is not value:
        return None
    if module.startswith(USER_MODULE):
        return f"{holder.__file__}:{name}"
    return f"{module}:{name}" if PathFinder.find_spec(module.partition(".")[0]) is not None else None


def qualified_name(value: object) -> str:
    """`module.name` of a function or class, `module.Class()` of an instance."""
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(value, '__module__', None) or 'builtins'}.{name}"
    return f"{type(value).__module__}.{type(value).__qualname__}()"


def object_problems(config: RunConfig, objects: Objects) -> Iterator[Problem]:
    """The problems of objects that the config names and nobody has given."""
    for need in needs_of(config):
        if need.what is Outside.CODE and is_object_name(need.name) and need.name not in objects:
            error = no_such_object(need.name)
            yield Problem(need.place, error.message, error.remedy)


def _section_kind(place: KeyPath) -> str | None:
    for pattern, kind in SECTIONS.items():
        if any(_matches(place, full) for full in _patterns((pattern,))):
            return kind
    return None


def _takes_objects(place: KeyPath) -> bool:
    return any(_matches(place, pattern) for pattern in _patterns(PLACES))


def _traits(kind: str, value: object) -> dict[str, Any]:
    """The setting `per` of a judger object: one with `judge_group` judges whole groups."""
    groups = kind == "native" and not hasattr(value, "judge") and hasattr(value, "judge_group")
    return {"per": "group"} if groups else {}


def _patterns(places: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, ...]]:
    for place in places:
        for before in TASK_SETS if place[0] in ("agent", "data") else ((),):
            yield (*before, *place)


def _matches(place: KeyPath, pattern: tuple[str, ...]) -> bool:
    return len(place) == len(pattern) and all(want in ("*", key) for key, want in zip(place, pattern, strict=True))


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"
