"""Moves settings of other frameworks' nested keys to our keys, each with its source.

Old keys are separated in every layer, merged among themselves, and then moved. If a setting is given under both keys,
the values must agree. No old key is dropped silently: it moves, is not needed, or is a problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loopwright.config.layers import Assignment, Layered, leaves
from loopwright.config.migration import verl, verl_gone, xtuner
from loopwright.config.migration.values import EMPTY, Lost, Old, Outcome, Rule, Unneeded, resolve, unresolved
from loopwright.config.problems import KeyPath, Problem, dotted, suggest

RULES: dict[str, Rule] = {**verl.RULES, **xtuner.RULES}
REMEDIES: dict[str, str] = {**verl_gone.REMEDIES, **xtuner.REMEDIES}
"""Settings and whole sections without an equivalent."""

SHARED = ("data", "trainer")
"""Sections that exist here too. In them, the name of a key says whether it is old."""

_PATHS = {tuple(name.split(".")) for name in (*RULES, *REMEDIES)}
ROOTS = {path[0] for path in _PATHS} - set(SHARED)
BY_COMPANY = ("data", "seed")
"""A name that is ours too, for generated tasks: it is old where it stands among old ones, without a kind."""
_SHARED_KEYS = {path[:2] for path in _PATHS if path[0] in SHARED} - {BY_COMPANY}


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of moving the old keys."""

    moved: list[Assignment] = field(default_factory=list)
    notices: list[Problem] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def set_apart(layered: Layered) -> Layered:
    """Take the old keys out of a file's values."""
    old = Layered({}, {})
    for root in list(layered.values):
        if root in ROOTS:
            old.values[root] = layered.values.pop(root)
        elif root in SHARED and isinstance(layered.values[root], dict):
            ours, theirs = _parted(root, layered.values[root])
            if theirs:
                layered.values[root], old.values[root] = ours, theirs
            if theirs and not ours:
                del layered.values[root]
    for path in list(layered.sources):
        if path[0] in ROOTS or (len(path) > 1 and path[1] in old.values.get(str(path[0]), {})):
            old.sources[path] = layered.sources.pop(path)
    return old


def split(assignment: Assignment) -> Iterator[tuple[Assignment, bool]]:
    """The parts of an assignment, each with whether it is in the old spelling."""
    root = str(assignment.path[0])
    if len(assignment.path) > 1 or root not in SHARED or not isinstance(assignment.value, dict):
        yield assignment, _is_old(assignment.path)
        return
    ours, theirs = _parted(root, assignment.value)
    for key, value in theirs.items():
        yield replace(assignment, path=(root, key), value=value), True
    if ours or not theirs:
        yield replace(assignment, value=ours), False


def migrate(old: Layered) -> Migration:
    """Move every old setting, or say why it cannot be moved."""
    result = Migration()
    found = {dotted(path): value for path, value in leaves(old.values)}
    values = {name: resolve(value, found) for name, value in found.items()}
    settings: dict[KeyPath, dict[KeyPath, Any]] = {}
    for leaf, value in leaves(old.values):
        if leaf and leaf[-1] != "_target_" and (value or not _is_section(leaf)):
            path = _known(leaf)
            settings.setdefault(path, {})[leaf[len(path) :]] = values[dotted(leaf)]
    for path, parts in settings.items():
        _record(result, path, _outcome(dotted(path), parts, values), old)
    return replace(result, problems=list(_folded(result.problems)))


def merge(layered: Layered, moved: Sequence[Assignment]) -> Iterator[Problem]:
    """Set the moved value at its place, unless another value stands there."""
    for assignment in moved:
        given = _given(layered.values, assignment.path)
        problem = layered.assign(assignment) if given is None else _conflict(layered, assignment, *given)
        if problem:
            yield problem


def _conflict(layered: Layered, assignment: Assignment, path: KeyPath, value: Any) -> Problem | None:
    if value == assignment.value or value == {"kind": assignment.value}:
        return None
    made, place = json.dumps(assignment.value), replace(assignment.source, was="")
    text = f"{assignment.source.was} makes it {made} ({place}), but it is {json.dumps(value)}"
    return Problem(path, text, "keep one of the two", source=str(layered.source_near(path)))


def _outcome(name: str, parts: dict[KeyPath, Any], values: Old) -> Outcome:
    """`parts` is what stands there: a value, at the empty path, or those of a section."""
    if name in REMEDIES:
        return _gone(parts, is_off=values.get(f"{name}.enable") is False) or Lost("has no equivalent", REMEDIES[name])
    if name not in RULES:
        return Lost("unknown setting", suggest(name, sorted({*RULES, *REMEDIES}), "old settings"))
    value = parts[()] if () in parts else {dotted(path): part for path, part in parts.items()}
    if unresolved(value):
        return Lost(f"is {value!r}, which refers to nothing", "write the value itself")
    return RULES[name](value, values)


def _gone(parts: dict[KeyPath, Any], *, is_off: bool) -> Unneeded | None:
    """Why a setting without an equivalent is not needed: its value asks for nothing."""
    if is_off:
        return Unneeded("it is off")
    return EMPTY if all(part is None or part in ("", [], {}) for part in parts.values()) else None


def _record(result: Migration, path: KeyPath, outcome: Outcome, old: Layered) -> None:
    source = old.source_near(path)
    if isinstance(outcome, Lost):
        result.problems.append(Problem(path, outcome.text, outcome.remedy, source=str(source)))
    elif isinstance(outcome, Unneeded):
        result.notices.append(Problem(path, f"is not needed: {outcome.why}", "remove it", source=str(source)))
    else:
        ours = " and ".join(moved.name for moved in outcome)
        remedy = "`loopwright migrate` prints the file in today's spelling"
        result.notices.append(Problem(path, f"is now {ours}", remedy, source=str(source)))
        was = replace(source, was=dotted(path))
        result.moved.extend(Assignment(tuple(moved.name.split(".")), moved.value, was) for moved in outcome)


def _folded(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Merge problems with the same words and remedy into one. A whole config of verl has a hundred problems, and few
    remedies."""
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem.text, problem.remedy), []).append(problem)
    for first, *others in alike.values():
        names = ", ".join(f"{dotted(other.path)} ({other.source})" for other in others)
        yield replace(first, source=f"{first.source}; likewise {names}") if others else first


def _is_old(path: KeyPath) -> bool:
    return path[0] in ROOTS or path[:2] in _SHARED_KEYS


def _is_section(path: KeyPath) -> bool:
    return any(len(known) > len(path) and known[: len(path)] == path for known in _PATHS)


def _known(leaf: KeyPath) -> KeyPath:
    """The setting itself, or the nearest one around it: a section that is one setting, or has no equivalent."""
    round_it = (leaf[:depth] for depth in range(len(leaf), 0, -1))
    return next((path for path in round_it if dotted(path) in RULES or dotted(path) in REMEDIES), leaf)


def _parted(root: str, section: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    theirs = {key: value for key, value in section.items() if (root, key) in _SHARED_KEYS}
    if root == BY_COMPANY[0] and theirs and "kind" not in section and BY_COMPANY[1] in section:
        theirs[BY_COMPANY[1]] = section[BY_COMPANY[1]]
    return {key: value for key, value in section.items() if key not in theirs}, theirs


def _given(values: Any, path: KeyPath) -> tuple[KeyPath, Any] | None:
    """The value at `path`, or the plain value in the place of its section."""
    here = values
    for depth, key in enumerate(path):
        if not isinstance(here, dict | list):
            return path[:depth], here
        items = here if isinstance(here, dict) else dict(enumerate(here))
        if key not in items:
            return None
        here = items[key]
    return path, here
