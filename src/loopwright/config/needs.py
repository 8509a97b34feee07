"""What a section of the config needs from outside. Each section says so itself, so code that checks files, packages or
environment variables need not know the kinds of sections."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from loopwright.config.problems import KeyPath


class Outside(StrEnum):
    """What the name in a setting stands for."""

    CODE = "code"
    """A Python object of the user: `file.py:name` or `package.module:name`."""
    FILE = "file"
    FOLDER = "folder"
    TABLES = "tables"
    """A Parquet file, a folder of them, or a glob pattern."""
    PROGRAM = "program"
    MODEL = "model"
    """A folder with a model, or the name of one."""
    EXTRA = "extra"
    """A pip extra of ours, by its name in `extras.EXTRAS`."""
    VARIABLE = "variable"
    """An environment variable."""
    KEY = "key"
    """An environment variable that holds a key for an HTTP header."""


@dataclass(frozen=True, slots=True)
class Need:
    """`place` is the setting that has the need, relative to its section."""

    what: Outside
    place: KeyPath
    name: str


def code_if_own(setting: str, value: str | None) -> tuple[Need, ...]:
    """The need of a setting that holds an import path, one of our words, or nothing."""
    return (Need(Outside.CODE, (setting,), value),) if value is not None and ":" in value else ()
