"""Walks the schema: finds what may stand at a place of the config, and lists all options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from loopwright.config.base import Section
from loopwright.config.problems import Key, KeyPath
from loopwright.config.schema import RunConfig
from loopwright.config.short_form import NAMES, SHORT_KEYS


@dataclass(frozen=True, slots=True)
class Place:
    """A place as the user writes it, the keys that exist beside its last one, and the kinds of section it may hold."""

    path: KeyPath
    names: tuple[str, ...]
    kinds: tuple[str, ...]


def locate(loc: Sequence[Key]) -> Place:
    """Translate a place from pydantic's names to those that the user writes."""
    path: list[Key] = []
    names: tuple[str, ...] = ()
    here: Any = RunConfig
    for key in loc:
        members = _sections(here)
        if len(members) > 1:  # pydantic puts the chosen member's kind here; the file has no such level
            here = next((member for member in members if key in _kinds(member)), None)
        elif members:
            names = _names(members[0], tuple(path))
            path.append(key)
            field = members[0].model_fields.get(str(key))
            here = field.annotation if field else None
        elif (inner := _inside(here, key)) is not None:
            names = ()
            path.append(key)
            here = inner
        else:  # the member of a union of plain types
            break
    return Place(tuple(path), names, tuple(kind for member in _sections(here) for kind in _kinds(member)))


def options() -> Iterator[str]:
    """Every option as `path: type = default`."""
    yield from _options(RunConfig, "")


def _options(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield from _option(f"{prefix}{name}", field.annotation, field)


def _option(name: str, annotation: Any, field: FieldInfo) -> Iterator[str]:
    members = _sections(annotation)
    inner = _inside(annotation, 0)
    if members:
        for member in members:
            choice = f"[{_kinds(member)[0]}]" if len(members) > 1 else ""
            yield from _options(member, f"{name}{choice}.")
    elif inner is not None and _sections(inner):
        yield from _option(f"{name}.{'NAME' if _is_mapping(annotation) else 'N'}", inner, field)
    else:
        default = "" if field.is_required() else f" = {_shown(field.get_default(call_default_factory=True))}"
        yield f"{name}: {_spelled(annotation)}{default}"


def _names(section: type[Section], place: KeyPath) -> tuple[str, ...]:
    names = tuple(section.model_fields)
    return (*names, *SHORT_KEYS) if place in NAMES else names


def _kinds(section: type[Section]) -> tuple[str, ...]:
    """The kinds that a section may have, its default first. A section that is alone in its place may have none."""
    field = section.model_fields.get("kind")
    return tuple(str(kind) for kind in get_args(field.annotation)) if field else ()


def _parts(annotation: Any) -> list[Any]:
    """The members of a union (or the annotation alone), without None and without metadata."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for member in get_args(annotation) for part in _parts(member)]
    return [] if annotation is NoneType else [annotation]


def _sections(annotation: Any) -> list[type[Section]]:
    return [part for part in _parts(annotation) if inspect.isclass(part) and issubclass(part, Section)]


def _is_mapping(annotation: Any) -> bool:
    return any(get_origin(part) is dict for part in _parts(annotation))


def _inside(annotation: Any, key: Key) -> Any:
    """The type of the items of a list or mapping; None for anything else."""
    for part in _parts(annotation):
        if get_origin(part) is dict:
            return get_args(part)[1]
        if get_origin(part) is tuple:
            items = [item for item in get_args(part) if item is not Ellipsis]
            return items[min(int(key), len(items) - 1)]
    return None


def _spelled(annotation: Any) -> str:
    words = [word for part in _parts(annotation) for word in _words(part)]
    optional = NoneType in get_args(annotation)
    return " | ".join([*words, "null"] if optional else words)


def _words(part: Any) -> list[str]:
    if get_origin(part) is Literal:
        return [str(value) for value in get_args(part)]
    if get_origin(part) is tuple:
        return [f"list of {_spelled(get_args(part)[0])}"]
    if get_origin(part) is dict:
        return ["mapping"]
    if inspect.isclass(part) and issubclass(part, StrEnum):
        return [str(value) for value in part]
    return [{str: "text", int: "int", float: "float", bool: "true or false"}[part]]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_shown(item) for item in value)}]"
    return "null" if value is None else str(value)
