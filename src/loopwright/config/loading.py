"""From a file, the environment and the command line to one checked config that knows where each value came from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopwright.config import checks
from loopwright.config.files import file_problems, file_warnings
from loopwright.config.layers import (
    DEFAULT,
    ENV_PREFIX,
    ENV_SEPARATOR,
    Assignment,
    Layer,
    Layered,
    Source,
    assignments_from_env,
    assignments_from_overrides,
    leaves,
)
from loopwright.config.migration import merge, migrate, set_apart, split, take_renamed
from loopwright.config.problems import KeyPath, Problem, config_error, dotted
from loopwright.config.purpose import Purpose, part_for
from loopwright.config.schema import RunConfig
from loopwright.config.secrets import secret_problems, secrets_of
from loopwright.config.short_form import (
    SHORT_KEYS,
    contract,
    expand,
    expand_kinds,
    lengthen,
    name_kinds,
    name_task_sets,
    short_places,
    shorten,
)
from loopwright.config.validate import validate, without
from loopwright.config.yaml_text import read_yaml


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of the merged config, for showing."""

    name: str
    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked config. Relative paths in it start from `base`, the folder of its file.

    `secrets` holds the environment variables that it names; they are no part of it, and are never shown.
    """

    config: RunConfig
    base: Path
    sources: Mapping[KeyPath, Source]
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def settings(self) -> Iterator[Setting]:
        """Every field with its value and who gave it."""
        for path, value in leaves(self.config.model_dump(mode="json")):
            yield Setting(dotted(path), value, self.sources.get(path, DEFAULT))


@dataclass(frozen=True, slots=True)
class Migrated:
    """A file in today's spelling: its values, what was done, and what is left to do by hand."""

    values: dict[str, Any]
    notices: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Merged:
    """All layers as one, before anything is validated."""

    layered: Layered
    places: frozenset[KeyPath]
    problems: list[Problem]
    notices: list[Problem]

    def placed(self, problem: Problem) -> Problem:
        """The problem in the user's own spelling, with where the value was given."""
        near = self.layered.source_near(problem.path)
        source = problem.source or ("" if near is DEFAULT else str(near))
        return replace(problem, path=shorten(problem.path, self.places), source=source)


def load(
    path: Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    files: bool = False,
    base: Path | None = None,
    purpose: Purpose = Purpose.TRAIN,
    other_model: bool = False,
) -> Loaded:
    """Merge the layers and check the result; with `files`, also what it names on disk and in `env`.

    Of these, only what `purpose` uses must be there; with `other_model`, the model need not be. Relative paths start
    from `base`, or else from the file's folder. Raises one ConfigError that lists all problems.
    """
    merged = _merge(path, overrides, env or {})
    name_task_sets(merged.layered.values, merged.places)
    base = base or path.resolve().parent

    def outside(config: RunConfig) -> Iterator[Problem]:
        if files:
            yield from file_problems(part_for(config, purpose), base, model=not other_model)

    config, found = _checked(merged.layered.values, outside)
    found = [*merged.problems, *found]
    if files and config is not None:
        found += secret_problems(part_for(config, purpose), env or {})
    if found or config is None:
        raise config_error(str(path), [merged.placed(problem) for problem in found])
    warned = [
        *merged.notices,
        *checks.warnings(config),
        *(file_warnings(config, base) if files and not other_model else ()),
        *_misspelt(env or {}),
    ]
    warnings = tuple(str(merged.placed(problem)) for problem in warned)
    return Loaded(config, base, merged.layered.sources, warnings, secrets_of(config, env or {}))


def migrate_file(path: Path) -> Migrated:
    """Bring a file with old keys into today's spelling, as far as that can be done without its author."""
    merged = _merge(path, (), {})
    values = copy.deepcopy(merged.layered.values)
    contract(values, merged.places)
    name_task_sets(merged.layered.values, merged.places)
    _, wrong = _checked(merged.layered.values, lambda config: iter(()))
    problems = tuple(str(merged.placed(problem)) for problem in [*merged.problems, *wrong])
    order = ("model", *SHORT_KEYS, *RunConfig.model_fields, *values)
    values = dict(sorted(values.items(), key=lambda item: order.index(item[0])))
    return Migrated(values, tuple(str(notice) for notice in merged.notices), problems)


def _merge(path: Path, overrides: Sequence[str], env: Mapping[str, str]) -> _Merged:
    document = read_yaml(path)
    if not isinstance(document.values, dict):
        raise config_error(str(path), [Problem((), "the file is not a mapping of sections", "start with `model:`")])
    sources = {place: Source(Layer.FILE, f"{path.name}:{line}") for place, line in document.lines.items()}
    layered = Layered(document.values, sources)
    old = set_apart(layered)
    places = short_places(layered.values)
    problems = list(expand(layered))
    expand_kinds(layered)
    for item in [*assignments_from_env(env), *assignments_from_overrides(overrides)]:
        problems += [item] if isinstance(item, Problem) else _assign(item, layered, old, places)
    migration = migrate(old)
    moved = [replace(each, path=lengthen(each.path, places)) for each in migration.moved]
    problems += [*migration.problems, *merge(layered, moved)]
    renamed = take_renamed(layered, places)
    problems += [*merge(layered, renamed.moved), *expand(layered)]
    expand_kinds(layered)
    name_kinds(layered.values)
    return _Merged(layered, places, problems, [*migration.notices, *renamed.notices])


def _assign(item: Assignment, layered: Layered, old: Layered, places: frozenset[KeyPath]) -> list[Problem]:
    parts = [
        old.assign(part) if is_old else layered.assign(replace(part, path=lengthen(part.path, places)))
        for part, is_old in split(item)
    ]
    expand_kinds(layered)
    # The short form given from outside, beside task sets in the file, is the same mistake as both in the file.
    return [problem for problem in [*parts, *expand(layered)] if problem]


def _checked(
    values: Mapping[str, Any], outside: Callable[[RunConfig], Iterable[Problem]]
) -> tuple[RunConfig | None, list[Problem]]:
    """The config, or None, and all its problems: also those across the fields that are sound by themselves, and those
    that `outside` finds."""
    config = validate(values)
    if isinstance(config, RunConfig):
        return config, [*checks.problems(config), *outside(config)]
    faulty = config
    rest = validate(without(values, [problem.path for problem in faulty]))
    if isinstance(rest, RunConfig):
        # A faulty field fell back to its default here, so nothing is said about its neighbours.
        doubtful = {problem.path[:-1] for problem in faulty}
        faulty += [
            problem
            for problem in (*checks.problems(rest), *outside(rest))
            if not any(path[:-1] in doubtful for path in (problem.path, *problem.also))
        ]
    return None, faulty


def _misspelt(env: Mapping[str, str]) -> Iterator[Problem]:
    """`LOOPWRIGHT_ROLLOUT_TEMPERATURE` sets nothing, and would do so silently."""
    for name in sorted(env):
        rest = name.removeprefix(ENV_PREFIX)
        section, underscore, field = rest.partition("_")
        if rest == name or ENV_SEPARATOR in rest or not underscore or section.lower() not in RunConfig.model_fields:
            continue
        meant = f"{ENV_PREFIX}{section}{ENV_SEPARATOR}{field}"
        yield Problem((), f"the environment variable {name} has no effect", f"did you mean {meant}?")
