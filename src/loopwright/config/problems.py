"""Problems as values. They are collected and reported together, each with its place and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.errors import ConfigError

Key = str | int
KeyPath = tuple[Key, ...]
"""A place in the config: mapping keys and list indices from the top."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`also` names the other fields that the problem depends on; `source` says where the value was given."""

    path: KeyPath
    text: str
    remedy: str
    also: tuple[KeyPath, ...] = ()
    source: str = ""

    def below(self, place: KeyPath) -> Problem:
        """The same problem of a section at `place`."""
        also = tuple((*place, *path) for path in self.also)
        return replace(self, path=(*place, *self.path), also=also)

    def __str__(self) -> str:
        place = f"{dotted(self.path)}: " if self.path else ""
        source = f" ({self.source})" if self.source else ""
        return f"{place}{self.text}{source} -> {self.remedy}"


def dotted(path: Sequence[Key]) -> str:
    return ".".join(str(key) for key in path)


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was probably meant to be."""
    close = difflib.get_close_matches(str(name), list(candidates), n=1, cutoff=0.6)
    return close[0] if close else None


def suggest(name: object, candidates: Sequence[str], what: str) -> str:
    """A remedy for a wrong name: the likely one, or else all there are."""
    if close := nearest(name, candidates):
        return f"did you mean {close!r}?"
    return f"{what}: {', '.join(candidates)}" if candidates else f"there is no {what}"


def config_error(name: str, problems: Sequence[Problem], file: Path | None) -> ConfigError:
    """All problems of one config, from `file` or from a program, as one error."""
    lines = [str(problem) for problem in problems]
    count = f"{len(lines)} problems" if len(lines) > 1 else "1 problem"
    numbered = "\n".join(f"  {number}. {line}" for number, line in enumerate(lines, 1))
    again = f"run `loopwright check {file}`" if file else "open the run again"
    return ConfigError(
        f"{name} has {count}:\n{numbered}",
        remedy=f"mend {'them' if len(lines) > 1 else 'it'}, then {again}",
        problems=lines,
    )
