"""Short forms: `data` + `agent` (+ `sampling`) beside the other sections stands for one task set, and a kind's name for
a section of that kind.

After expansion there are only task sets and sections. Messages still name fields as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopwright.config.layers import Layered
from loopwright.config.problems import KeyPath, Problem

SHORT_KEYS = ("data", "agent", "sampling")
NAMES: dict[KeyPath, str] = {(): "train", ("eval",): "eval"}
"""Where the short form may stand, and what its task set is called."""

KIND_PLACES: dict[KeyPath, str | None] = {
    ("learner", "advantage"): None,
    ("learner", "loss"): "ppo_clip",
    ("rollout", "engine"): "torch",
}
"""Sections that a kind's name may stand for (`advantage: rloo`), and the kind that one without a kind has."""


def short_places(values: dict[str, Any]) -> frozenset[KeyPath]:
    """Where the short form may be used, because the file lists no task sets there."""
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


def expand_kinds(layered: Layered) -> None:
    """Write kinds out: `advantage: rloo` as `advantage: {kind: rloo}`, from the same source."""
    for place in KIND_PLACES:
        holder = _section(layered.values, place[:-1]) or {}
        kind = holder.get(str(place[-1]))
        if isinstance(kind, str):
            holder[str(place[-1])] = {"kind": kind}
            layered.sources[(*place, "kind")] = layered.sources.pop(place)


def name_kinds(values: dict[str, Any]) -> None:
    """Give a section without a kind the default kind."""
    for place, usual in KIND_PLACES.items():
        section = _section(values, place)
        if usual and section is not None:
            section.setdefault("kind", usual)


def name_task_sets(values: dict[str, Any], places: frozenset[KeyPath]) -> None:
    """Give the task set that the short form made its name."""
    for place in places:
        match (_section(values, place) or {}).get("task_sets"):
            case [dict() as task_set, *_]:
                task_set.setdefault("name", NAMES[place])


def contract(values: dict[str, Any], places: frozenset[KeyPath]) -> None:
    """The inverse of `expand`, for showing: a lone task set without a name goes back to the short form."""
    for place in places:
        section = _section(values, place)
        match (section or {}).get("task_sets"):
            case [dict() as parts] if section is not None and set(parts) <= set(SHORT_KEYS):
                del section["task_sets"]
                section.update(parts)


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
        section = section.get(key) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None
