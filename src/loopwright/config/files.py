"""Checks that the files, folders and packages that a config names exist and are of the right kind. Nothing is imported
or loaded."""

from __future__ import annotations

import ast
import glob
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from loopwright.config.base import needs_of
from loopwright.config.engines import VllmEngineConfig
from loopwright.config.extras import missing
from loopwright.config.imports import is_object_name, split_symbol
from loopwright.config.judgers import BUILT_IN_JUDGERS
from loopwright.config.model_folders import (
    MODEL_CONFIG,
    TOKENIZER_FILES,
    has_tokenizer,
    is_adapter,
    is_model_and_adapter,
)
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import KeyPath, Problem, nearest, suggest
from loopwright.config.schema import RunConfig
from loopwright.errors import ConfigError

BUNDLED_MODEL = "smollm2"


def model_folder(path: str, base: Path) -> Path | None:
    """The folder that `model.path` names, or None if it is a name such as one of Hugging Face.

    A name like `org/model` is a folder only if that folder exists.
    """
    folder = base / Path(path).expanduser()
    looks_like_path = path.startswith((".", "/", "~")) or path.endswith("/") or path.count("/") > 1
    return folder if looks_like_path or (path != BUNDLED_MODEL and folder.exists()) else None


def table_files(path: str, base: Path) -> list[Path]:
    """The file itself, all Parquet files below a folder, or what a glob pattern matches, by name.

    A path that exists is never read as a pattern, and neither is `base`, even if they contain brackets.
    """
    place = base / path
    if place.is_file():
        return [place]
    matching = (base / name for name in glob.iglob(path, root_dir=base, recursive=True))
    return sorted(file for file in (place.rglob("*.parquet") if place.is_dir() else matching) if file.is_file())


def file_problems(config: RunConfig, base: Path, *, model: bool = True) -> Iterator[Problem]:
    """Everything on disk that is missing, unreadable or of the wrong kind. Without `model`, the model is not
    checked."""
    for need in needs_of(config):
        if model or need.place != ("model", "path"):
            yield from _unmet(need, base)
    if model:
        yield from _whole_model_wanted(config, base)
    for place, name in config.named_judgers():
        if name in BUILT_IN_JUDGERS and name not in config.judgers:
            for need in BUILT_IN_JUDGERS[name].needs():
                yield from _unmet(replace(need, place=place), base)
    yield from _run_dir(Path(config.trainer.run_dir))


def file_warnings(config: RunConfig, base: Path) -> Iterator[Problem]:
    """Warn about a near miss of the bundled model's name. Other names cannot be checked here."""
    path = config.model.path
    if path != BUNDLED_MODEL and model_folder(path, base) is None and nearest(path, [BUNDLED_MODEL]):
        yield Problem(
            ("model", "path"), f"{path!r} is taken for a Hugging Face name", f"did you mean {BUNDLED_MODEL!r}?"
        )


def _unmet(need: Need, base: Path) -> Iterator[Problem]:
    """What is wrong with something that a section needs. `secrets.py` checks environment variables."""
    place, name = need.place, need.name
    match need.what:
        case Outside.CODE:
            yield from _symbol(place, name, base)
        case Outside.FILE if not (base / name).is_file():
            yield _absent(place, base / name, "file")
        case Outside.FOLDER if not (base / name).is_dir():
            yield _absent(place, base / name, "folder")
        case Outside.TABLES if not (base / name).exists():
            if not glob.has_magic(name):
                yield _absent(place, base / name, "file")
            elif not table_files(name, base):
                yield Problem(place, f"nothing matches {base / name}", "fix the pattern")
        case Outside.PROGRAM if shutil.which(str(base / name) if "/" in name else name) is None:
            yield Problem(place, f"there is no program {name!r}", "install it, or give its path")
        case Outside.MODEL:
            yield from _model(place, name, base)
        case Outside.EXTRA:
            if extra := missing(name):
                yield Problem(place, f"needs the package {extra.package}", extra.remedy)


def _model(place: KeyPath, path: str, base: Path) -> Iterator[Problem]:
    folder = model_folder(path, base)
    if folder is None:
        return
    if not folder.is_dir():
        yield _absent(place, folder, "folder")
    elif is_model_and_adapter(folder):
        yield Problem(place, f"{path} holds a model and an adapter", "move one of them into a folder of its own")
    elif is_adapter(folder):
        # It may be without a tokenizer: that of its base is used.
        return
    elif not (folder / MODEL_CONFIG).is_file():
        yield Problem(place, f"{path} has no config.json", "name a folder that was written by save_pretrained")
    elif not has_tokenizer(folder):
        yield Problem(
            place,
            f"{path} is a model folder without a tokenizer",
            f"save the tokenizer beside the model: it needs {' or '.join(TOKENIZER_FILES)}",
        )


def _whole_model_wanted(config: RunConfig, base: Path) -> Iterator[Problem]:
    """An adapter cannot be the model of ranks, nor of a server that the run starts: both load whole models only."""
    engine, folder = config.rollout.engine, model_folder(config.model.path, base)
    if folder is None or not is_adapter(folder):
        return
    wanting: list[tuple[str, KeyPath]] = []
    if isinstance(engine, VllmEngineConfig) and not engine.urls:
        wanting.append(("vLLM loads", ("rollout", "engine", "kind")))
    if config.learner.ranks > 1:
        wanting.append(("ranks load", ("learner", "ranks")))
    for who, place in wanting:
        yield Problem(
            ("model", "path"),
            f"{config.model.path} is an adapter, and {who} whole models",
            "merge it first, and name that folder: `loopwright export RUN --merged --out DIR` for an adapter of a run, "
            "merge_and_unload of peft for any other",
            also=(place,),
        )


def _symbol(place: KeyPath, path: str, base: Path) -> Iterator[Problem]:
    if is_object_name(path):  # nothing on disk
        return
    try:
        symbol = split_symbol(path, base)
    except ConfigError as error:
        yield Problem(place, error.message, error.remedy)
        return
    if symbol.file is None:
        package = symbol.place.split(".")[0]
        if not (importlib.util.find_spec(package) or PathFinder.find_spec(package, [str(base)])):
            yield Problem(place, f"there is no module {package!r}", f"install it, or name a file: {package}.py:name")
    elif not symbol.file.is_file():
        yield _absent(place, symbol.file, "file")
    else:
        yield from _name_in_file(place, symbol.file, symbol.name)


def _name_in_file(place: KeyPath, file: Path, name: str) -> Iterator[Problem]:
    """Parse the file without running it. A name that it never binds cannot be imported from it."""
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError) as error:
        yield Problem(place, f"{file.name} is not valid Python: {error}", "fix the file")
        return
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    if not bound & {name, "*", "__getattr__"}:
        yield Problem(place, f"{file.name} has no {name!r}", suggest(name, sorted(bound), f"names in {file.name}"))


def _run_dir(run_dir: Path) -> Iterator[Problem]:
    existing = next(parent for parent in (run_dir, *run_dir.absolute().parents) if parent.exists())
    if not existing.is_dir():
        yield Problem(("trainer", "run_dir"), f"{existing} is not a folder", "choose another run_dir")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield Problem(("trainer", "run_dir"), f"{existing} is not writable", "choose a folder that you may write to")


def _absent(place: KeyPath, path: Path, what: str) -> Problem:
    folder = path.parent
    if not folder.is_dir():
        return Problem(place, f"there is no folder {folder}", "paths are relative to the config file's folder")
    candidates = [entry.name for entry in folder.iterdir() if entry.is_dir() == (what == "folder")]
    if close := nearest(path.name, candidates):
        return Problem(place, f"there is no {what} {path}", f"did you mean {close!r}?")
    return Problem(place, f"there is no {what} {path}", "paths are relative to the config file's folder")
