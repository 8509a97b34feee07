"""Keys of ours that have another name now. An old name works for one release, with a warning that names the new one.

To rename a key, change the schema and add a row to RENAMED. In the release that the row names, delete the row.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from loopwright.config.layers import Assignment, Layered
from loopwright.config.migration.migrate import Migration, merge
from loopwright.config.problems import Key, KeyPath, Problem, dotted
from loopwright.config.short_form import shorten

ANY = ("N", "NAME")
"""What stands in a row for any number in a list and any name in a mapping, as `python -m loopwright.config` has it."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A key that moved: `Renamed("rollout.tokens", "rollout.max_new_tokens", since="0.2.0", gone="0.3.0")`.

    Both names are dotted and in full: `task_sets.N.agent.judger`, not `agent.judger`. They have as many N and NAME.
    Release `since` renamed it, and release `gone` no longer reads the old name.
    """

    old: str
    new: str
    since: str
    gone: str


RENAMED: tuple[Renamed, ...] = ()


def take_renamed(layered: Layered, places: frozenset[KeyPath] = frozenset()) -> Migration:
    """Take the old names out of the values, for `merge` to put them in their new places.

    `places` is where the short form is in use, so that a notice has the names that the user wrote.
    """
    taken = Migration()
    for row in RENAMED:
        for path in list(_places(layered.values, tuple(row.old.split(".")))):
            target = _filled(row, path)
            source, value = layered.source_near(path), _take(layered, path)
            taken.moved.append(Assignment(target, value, replace(source, was=dotted(shorten(path, places)))))
            new = dotted(shorten(target, places))
            text = f"is called {new} since {row.since}; {row.gone} will not read the old name"
            taken.notices.append(Problem(path, text, f"write {new}", source=str(source)))
    return taken


def with_new_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config that an earlier version stored, under the present names."""
    layered = Layered(copy.deepcopy(dict(values)), {})
    for _ in merge(layered, take_renamed(layered).moved):
        pass  # no version stores a setting under both names
    return layered.values


def _places(values: Any, pattern: KeyPath) -> Iterator[KeyPath]:
    """The paths that are there and match the pattern."""
    if not pattern:
        yield ()
        return
    first, *rest = pattern
    for key, child in _items(values):
        if key == first or first in ANY:
            yield from ((key, *path) for path in _places(child, tuple(rest)))


def _items(values: Any) -> list[tuple[Key, Any]]:
    if isinstance(values, dict):
        return list(values.items())
    return list(enumerate(values)) if isinstance(values, list) else []


def _filled(row: Renamed, path: KeyPath) -> KeyPath:
    """The new name, with the numbers and names that stand in the old one."""
    found = iter([key for key, name in zip(path, row.old.split("."), strict=True) if name in ANY])
    return tuple(next(found) if name in ANY else name for name in row.new.split("."))


def _take(layered: Layered, path: KeyPath) -> Any:
    """Remove a value with its sources. A section that held nothing else goes too: an empty one may mean something."""
    holders: list[Any] = [layered.values]
    for key in path[:-1]:
        holders.append(holders[-1][key])
    value = holders[-1].pop(path[-1])
    for key, holder in zip(reversed(path[:-1]), reversed(holders[:-1]), strict=True):
        if holder[key] or not isinstance(holder, dict):
            break
        del holder[key]
    for known in [known for known in layered.sources if known[: len(path)] == path]:
        del layered.sources[known]
    return value
