"""What happens to the value of an old key: it moves to keys of ours, is not needed, or is lost, with a remedy.

The rules here know no framework; the tables in the other files do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import yaml

from loopwright.config.yaml_text import parse_yaml


@dataclass(frozen=True, slots=True)
class Moved:
    """A setting of ours, by its dotted name, and its value."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Unneeded:
    """It asks for what happens anyway."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Nothing of ours means the same."""

    text: str
    remedy: str


Old = Mapping[str, Any]
"""All old settings of one config by their dotted names, with references between them resolved."""

Outcome = tuple[Moved, ...] | Unneeded | Lost
Rule = Callable[[Any, Old], Outcome]

EMPTY = Unneeded("it is empty")


def to(*names: str, by: Callable[[Any], Any] = lambda value: value) -> Rule:
    """The same setting under other names, its value converted by `by`."""

    def rule(value: Any, old: Old) -> Outcome:
        return EMPTY if value is None else tuple(Moved(name, by(value)) for name in names)

    return rule


def one_of(name: str, spellings: Mapping[Any, Any], remedy: str) -> Rule:
    """A choice whose members have other names here."""

    def rule(value: Any, old: Old) -> Outcome:
        if value is None:
            return EMPTY
        if isinstance(value, list | dict) or value not in spellings:
            return Lost(f"is {value!r}, which has no equivalent", remedy)
        return (Moved(name, spellings[value]),)

    return rule


def only(*values: Any, remedy: str) -> Rule:
    """A setting that must have one of `values`, because nothing else is supported here."""

    def rule(value: Any, old: Old) -> Outcome:
        if value is None or value in values:
            return Unneeded("it is what happens here anyway")
        return Lost(f"is {value!r}, which has no equivalent", remedy)

    return rule


def whole(value: Any) -> TypeGuard[int]:
    """Whether it is a number. In Python, YAML's true would be one too."""
    return isinstance(value, int) and not isinstance(value, bool)


_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,([^}]*))?\}")


def resolve(value: Any, values: Old, depth: int = 8) -> Any:
    """A value with its OmegaConf references (`${a.b}`, `${oc.select:a.b,default}`) filled in, as far as they can be."""
    if value == "???":  # OmegaConf's way to say that a value is missing
        return None
    if not isinstance(value, str) or "${" not in value or depth == 0:
        return value
    if match := _REFERENCE.fullmatch(value):
        return resolve(_referred(match, values), values, depth - 1)
    return _REFERENCE.sub(lambda match: str(resolve(_referred(match, values), values, depth - 1)), value)


def unresolved(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _referred(match: re.Match[str], values: Old) -> Any:
    name, default = match.groups()
    if name in values:
        return values[name]
    if default is None:
        return match[0]
    try:
        return parse_yaml(default).values
    except yaml.YAMLError:
        return match[0]
