"""Reads YAML into plain values with their line numbers. A key may stand only once, and keys are text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loopwright.config.problems import KeyPath, nearest
from loopwright.errors import ConfigError

MAX_DEPTH = 32
"""The deepest nesting. No config is that deep, but an alias that contains itself is endless."""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-5 as text; here it is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass(frozen=True, slots=True)
class Document:
    """A config file as written: its values, and the line on which each key or list item stands."""

    values: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read_yaml(path: Path) -> Document:
    """Read a config file, or say what is wrong with it, with line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", remedy=_another_file(path), file=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}", remedy="name a UTF-8 text file", file=str(path)
        ) from error
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise _malformed(path, error) from error


def parse_yaml(text: str) -> Document:
    """Parse YAML; raises `yaml.YAMLError`."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        return Document(None if node is None else _plain(loader, node, (), lines), lines)
    finally:
        loader.dispose()


def _plain(loader: _Loader, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    if len(path) > MAX_DEPTH:
        raise yaml.constructor.ConstructorError(None, None, "nested too deeply", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        _refuse_twice(node)
        loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            lines[*path, name] = key.start_mark.line + 1
            values[name] = _plain(loader, value, (*path, name), lines)
        return values
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[*path, index] = item.start_mark.line + 1
            items.append(_plain(loader, item, (*path, index), lines))
        return items
    return loader.construct_object(node, deep=True)


def _refuse_twice(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is here twice", key.start_mark)
        seen.add(key.value)


def _another_file(path: Path) -> str:
    folder = path.parent
    if folder.is_dir() and (close := nearest(path.name, (entry.name for entry in folder.iterdir()))):
        return f"did you mean {folder / close}?"
    return "name an existing config file"


def _malformed(path: Path, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    place = f"{path}:{line}:{column}" if mark else str(path)
    reason = getattr(error, "problem", None) or str(error)
    return ConfigError(
        f"{place}: this is not valid YAML: {reason}",
        remedy="fix the line; watch the indentation, and quote values that hold ': ' or start with a special sign",
        file=str(path),
        line=line,
        column=column,
    )
