"""The short form: `data` + `agent` (+ `sampling`) beside the other sections stands for one task set.

Inside, there are only task sets; messages speak of fields as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopwright.config.layers import Layered
from loopwright.config.problems import KeyPath, Problem

SHORT_KEYS = ("data", "agent", "sampling")
NAMES: dict[KeyPath, str] = {(): "train", ("eval",): "eval"}
"""Where the short form may stand, and what its task set is called."""


def short_places(values: dict[str, Any]) -> frozenset[KeyPath]:
    """Where the file leaves room for the short form, because it does not list task sets."""
    return frozenset(place for place in NAMES if "task_sets" not in (_section(values, place) or {}))


def expand(layered: Layered) -> Iterator[Problem]:
    """Move the short form's parts into a task set, with their sources."""
    for place in NAMES:
        section = _section(layered.values, place)
        given = [key for key in SHORT_KEYS if section and key in section]
        if not section or not given:
            continue
        parts = {key: section.pop(key) for key in given}
        if "task_sets" in section:
            short = " and ".join(given)
            yield Problem((*place, given[0]), f"{short} beside task_sets", f"move {short} into an item of task_sets")
            continue
        section["task_sets"] = [parts]
        for known in list(layered.sources):
            layered.sources[lengthen(known, frozenset({place}))] = layered.sources.pop(known)


def name_task_sets(values: dict[str, Any], places: frozenset[KeyPath]) -> None:
    """Give the task set that the short form made its name."""
    for place in places:
        match (_section(values, place) or {}).get("task_sets"):
            case [dict() as task_set, *_]:
                task_set.setdefault("name", NAMES[place])


def lengthen(path: KeyPath, places: frozenset[KeyPath]) -> KeyPath:
    """`data.path` as `task_sets.0.data.path`, where the short form is in use."""
    for place in places:
        depth = len(place)
        if path[:depth] == place and len(path) > depth and path[depth] in SHORT_KEYS:
            return (*place, "task_sets", 0, *path[depth:])
    return path


def shorten(path: KeyPath, places: frozenset[KeyPath]) -> KeyPath:
    """The inverse of `lengthen`."""
    for place in places:
        depth = len(place) + 2
        if path[:depth] == (*place, "task_sets", 0) and len(path) > depth and path[depth] in SHORT_KEYS:
            return (*place, *path[depth:])
    return path


def _section(values: dict[str, Any], place: KeyPath) -> dict[str, Any] | None:
    section: Any = values
    for key in place:
        section = section.get(key)
    return section if isinstance(section, dict) else None
