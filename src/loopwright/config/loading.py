"""Makes one checked config of a file or a Python program's values, the environment and the command line. It knows where
each value came from."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopwright.config import checks
from loopwright.config.files import file_problems, file_warnings
from loopwright.config.imports import Objects
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
    assignments_from_python,
    key_path,
    leaves,
)
from loopwright.config.migration import merge, migrate, set_apart, split, take_renamed
from loopwright.config.objects import ObjectNames, object_problems
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
from loopwright.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of the merged config, for showing."""

    name: str
    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked config. Relative paths in it start from `base`, the folder of its file.

    `secrets` holds the environment variables that it names, and `environment` all of them: child processes see a
    harmless part. They are not part of the config, and are never shown. `objects` are those that a Python program gave.
    """

    config: RunConfig
    base: Path
    sources: Mapping[KeyPath, Source]
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    objects: Objects = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def settings(self) -> Iterator[Setting]:
        """Every field with its value and who gave it."""
        for path, value in leaves(self.config.model_dump(mode="json")):
            yield Setting(dotted(path), value, self.sources.get(path, DEFAULT))


@dataclass(frozen=True, slots=True)
class Migrated:
    """A migrated file: its values under the present keys, what was changed, and what is left to do by hand."""

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


@dataclass(frozen=True, slots=True)
class _Given:
    """A config as it was given. Errors call it `name`; `file` is its file, if it has one."""

    name: str
    layered: Layered
    base: Path
    file: Path | None = None
    objects: Objects = field(default_factory=dict)
    problems: Sequence[Problem] = ()


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

    Only what `purpose` uses must exist; with `other_model`, the model need not exist. Relative paths start from `base`,
    or else from the file's folder. Raises one ConfigError that lists all problems.
    """
    given = _from_file(path, base)
    assignments = assignments_from_overrides(overrides)
    return _load(given, assignments, env or {}, files=files, purpose=purpose, other_model=other_model)


ConfigLike = str | os.PathLike[str] | Mapping[str, Any] | RunConfig
"""What a program may give for a config: the path of a file, the sections as a mapping, or the schema itself."""


def load_from_python(
    config: ConfigLike,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    base: Path | None = None,
) -> Loaded:
    """Load the config that a program gives, and check also what it names on disk and in `env`.

    A mapping and the values of `overrides` may hold Python objects where a config names the user's code. `overrides`
    are values by dotted name, or texts as on the command line. Relative paths start from `base`, or else from the
    file's folder, or else from the current one.
    """
    names = ObjectNames()
    given = _from_program(config, base, names)
    _check_overrides(overrides)
    if isinstance(overrides, Mapping):
        plain = {name: names.plain(value, key_path(name.split("."))) for name, value in overrides.items()}
        assignments: Iterable[Assignment | Problem] = assignments_from_python(plain)
    else:
        assignments = assignments_from_overrides(overrides)
    given = replace(given, objects=names.objects, problems=names.problems)
    return _load(given, assignments, env or {}, files=True)


def _check_overrides(overrides: Any) -> None:
    if isinstance(overrides, str):
        wrong = f"overrides are the text {overrides!r}"
    elif not isinstance(overrides, Mapping | Iterable):
        wrong = f"overrides are a {type(overrides).__name__}"
    elif others := [one for one in overrides if not isinstance(one, str)]:
        wrong = f"overrides hold a {type(others[0]).__name__} where a name or a text is expected"
    else:
        return
    raise ConfigError(
        wrong, remedy='give a mapping, {"rollout.temperature": 0.7}, or a list of texts, ["rollout.temperature=0.7"]'
    )


def _from_file(path: Path, base: Path | None) -> _Given:
    document = read_yaml(path)
    sources = {place: Source(Layer.FILE, f"{path.name}:{line}") for place, line in document.lines.items()}
    return _given(str(path), document.values, sources, base or path.resolve().parent, path)


def _from_program(config: ConfigLike, base: Path | None, names: ObjectNames) -> _Given:
    if isinstance(config, str | os.PathLike):
        return _from_file(Path(config), base)
    if not isinstance(config, Mapping | RunConfig):
        raise ConfigError(
            f"a config cannot be made of a {type(config).__name__}",
            remedy="give the path of a config file, a mapping of sections, or a loopwright.config.RunConfig",
        )
    values = names.plain(config)
    sources = {place: Source(Layer.PYTHON) for place, _ in leaves(values) if place}
    return _given("the config", values, sources, base or Path.cwd())


def _given(name: str, values: Any, sources: dict[KeyPath, Source], base: Path, file: Path | None = None) -> _Given:
    if not isinstance(values, dict):
        problem = Problem((), "the file is not a mapping of sections", "start with `model:`")
        raise config_error(name, [problem], file)
    return _Given(name, Layered(values, sources), base, file)


def _load(
    given: _Given,
    assignments: Iterable[Assignment | Problem],
    env: Mapping[str, str],
    *,
    files: bool,
    purpose: Purpose = Purpose.TRAIN,
    other_model: bool = False,
) -> Loaded:
    merged, base = _merge(given.layered, assignments, env), given.base
    name_task_sets(merged.layered.values, merged.places)

    def outside(config: RunConfig) -> Iterator[Problem]:
        if files:
            part = part_for(config, purpose)
            yield from file_problems(part, base, model=not other_model)
            yield from object_problems(part, given.objects)

    config, found = _checked(merged.layered.values, outside)
    found = [*given.problems, *merged.problems, *found]
    if files and config is not None:
        found += secret_problems(part_for(config, purpose), env)
    if found or config is None:
        raise config_error(given.name, [merged.placed(problem) for problem in found], given.file)
    warned = [
        *merged.notices,
        *checks.warnings(config),
        *(file_warnings(config, base) if files and not other_model else ()),
        *_misspelt(env),
    ]
    warnings = tuple(str(merged.placed(problem)) for problem in warned)
    secrets = secrets_of(config, env)
    return Loaded(config, base, merged.layered.sources, warnings, secrets, given.objects, env)


def migrate_file(path: Path) -> Migrated:
    """Rewrite a file with old keys to the present ones, as far as that can be done automatically."""
    merged = _merge(_from_file(path, None).layered, (), {})
    values = copy.deepcopy(merged.layered.values)
    contract(values, merged.places)
    name_task_sets(merged.layered.values, merged.places)
    _, wrong = _checked(merged.layered.values, lambda config: iter(()))
    problems = tuple(str(merged.placed(problem)) for problem in [*merged.problems, *wrong])
    order = ("model", *SHORT_KEYS, *RunConfig.model_fields, *values)
    values = dict(sorted(values.items(), key=lambda item: order.index(item[0])))
    return Migrated(values, tuple(str(notice) for notice in merged.notices), problems)


def _merge(layered: Layered, assignments: Iterable[Assignment | Problem], env: Mapping[str, str]) -> _Merged:
    old = set_apart(layered)
    places = short_places(layered.values)
    problems = list(expand(layered))
    expand_kinds(layered)
    for item in [*assignments_from_env(env), *assignments]:
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
    # A short form from another layer beside task sets in the file is the same mistake as both in the file.
    return [problem for problem in [*parts, *expand(layered)] if problem]


def _checked(
    values: Mapping[str, Any], outside: Callable[[RunConfig], Iterable[Problem]]
) -> tuple[RunConfig | None, list[Problem]]:
    """The config, or None, and all its problems: those of single fields, those across fields, and those that `outside`
    finds."""
    config = validate(values)
    if isinstance(config, RunConfig):
        return config, [*checks.problems(config), *outside(config)]
    faulty = config
    rest = validate(without(values, [problem.path for problem in faulty]))
    if isinstance(rest, RunConfig):
        # A wrong field has its default here, so do not report problems that depend on it.
        doubtful = {problem.path[:-1] for problem in faulty}
        faulty += [
            problem
            for problem in (*checks.problems(rest), *outside(rest))
            if not any(path[:-1] in doubtful for path in (problem.path, *problem.also))
        ]
    return None, faulty


def _misspelt(env: Mapping[str, str]) -> Iterator[Problem]:
    """Warn about names like `LOOPWRIGHT_ROLLOUT_TEMPERATURE` (one underscore), which set nothing."""
    for name in sorted(env):
        rest = name.removeprefix(ENV_PREFIX)
        section, underscore, field = rest.partition("_")
        if rest == name or ENV_SEPARATOR in rest or not underscore or section.lower() not in RunConfig.model_fields:
            continue
        meant = f"{ENV_PREFIX}{section}{ENV_SEPARATOR}{field}"
        yield Problem((), f"the environment variable {name} has no effect", f"did you mean {meant}?")
