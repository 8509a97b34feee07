"""What a config names on disk: is it there, and is it of the right kind? Nothing is imported or loaded."""

from __future__ import annotations

import ast
import glob
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from loopwright.config.data import DataConfig, DatasetData, JsonlData, ParquetData, PythonData, RowsConfig
from loopwright.config.evaluation import CustomMetric, metric_spec
from loopwright.config.extras import missing
from loopwright.config.imports import is_object_name, split_symbol
from loopwright.config.judgers import BUILT_IN_JUDGERS, ComposedJudgerConfig, LlmJudgerConfig, NativeJudgerConfig
from loopwright.config.learner import LearnerConfig, PythonAdvantage, PythonLoss
from loopwright.config.problems import KeyPath, Problem, nearest, suggest
from loopwright.config.schema import RunConfig
from loopwright.config.task_sets import CallableAgent, PythonAgent, ToolAgent
from loopwright.config.tools import PythonToolConfig, ToolConfig
from loopwright.errors import ConfigError
from loopwright.types import TrainerKind

BUNDLED_MODEL = "smollm2"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def model_folder(path: str, base: Path) -> Path | None:
    """The folder that `model.path` names, or None when it is a name to be looked up elsewhere.

    A name like `org/model` is a folder only if it is there.
    """
    folder = base / Path(path).expanduser()
    looks_like_path = path.startswith((".", "/", "~")) or path.endswith("/") or path.count("/") > 1
    return folder if looks_like_path or (path != BUNDLED_MODEL and folder.exists()) else None


def table_files(path: str, base: Path) -> list[Path]:
    """The file itself, all Parquet files below a folder, or what a glob pattern matches, by name.

    What is there is meant as it is spelled, and so is `base`: neither is a pattern, whatever brackets it has.
    """
    place = base / path
    if place.is_file():
        return [place]
    matching = (base / name for name in glob.iglob(path, root_dir=base, recursive=True))
    return sorted(file for file in (place.rglob("*.parquet") if place.is_dir() else matching) if file.is_file())


def file_problems(config: RunConfig, base: Path, *, model: bool = True) -> Iterator[Problem]:
    """Everything on disk that is missing, unreadable or of the wrong kind; without `model`, another one is used."""
    if model:
        yield from _model(("model", "path"), config.model.path, base)
    if config.model.renderer not in ("auto", "template"):
        yield from _package(("model", "renderer"), "renderers")
    for place, task_set in config.all_task_sets():
        yield from _data((*place, "data"), task_set.data, base)
        yield from _filter((*place, "filter"), task_set.filter, base)
        if isinstance(task_set.agent, PythonAgent | CallableAgent):
            yield from _symbol((*place, "agent", "path"), task_set.agent.path, base)
            yield from _filter((*place, "agent", "train"), task_set.agent.train, base)
        if isinstance(task_set.agent, ToolAgent):
            yield from _tools((*place, "agent", "tools"), task_set.agent.tools, base)
    yield from _filter(("produce", "filter"), config.produce.filter, base)
    yield from _judgers(config, base)
    for index, text in enumerate(config.eval.metrics if config.eval else ()):
        if isinstance(metric_spec(text), CustomMetric):
            yield from _symbol(("eval", "metrics", index), text, base)
    yield from _learner(config.learner, base)
    if config.track.tensorboard:
        yield from _package(("track", "tensorboard"), "tensorboard")
    if config.trainer.kind is TrainerKind.DISAGGREGATED:
        yield from _package(("trainer", "kind"), "serve")
    yield from _run_dir(Path(config.trainer.run_dir))


def file_warnings(config: RunConfig, base: Path) -> Iterator[Problem]:
    """A model's name cannot be checked here, but a near miss of the bundled one is worth a word."""
    path = config.model.path
    if path != BUNDLED_MODEL and model_folder(path, base) is None and nearest(path, [BUNDLED_MODEL]):
        yield Problem(
            ("model", "path"), f"{path!r} is taken for a Hugging Face name", f"did you mean {BUNDLED_MODEL!r}?"
        )


def _judgers(config: RunConfig, base: Path) -> Iterator[Problem]:
    for name, judger in config.judgers.items():
        yield from _package(("judgers", name, "kind"), judger.kind)
        if isinstance(judger, NativeJudgerConfig):
            yield from _symbol(("judgers", name, "path"), judger.path, base)
        elif isinstance(judger, ComposedJudgerConfig) and judger.merge is not None:
            yield from _symbol(("judgers", name, "merge"), judger.merge, base)
        elif isinstance(judger, LlmJudgerConfig) and judger.prompt_file is not None:
            yield from _file(("judgers", name, "prompt_file"), base / judger.prompt_file)
    for place, name in config.named_judgers():
        if name in BUILT_IN_JUDGERS and name not in config.judgers:
            yield from _package(place, BUILT_IN_JUDGERS[name].kind)


def _package(place: KeyPath, kind: str) -> Iterator[Problem]:
    if extra := missing(kind):
        yield Problem(place, f"needs the package {extra.package}", extra.remedy)


def _tools(place: KeyPath, tools: Sequence[ToolConfig], base: Path) -> Iterator[Problem]:
    for number, tool in enumerate(tools):
        if isinstance(tool, PythonToolConfig):
            yield from _symbol((*place, number, "path"), tool.path, base)
            continue
        yield from _package((*place, number, "kind"), tool.kind)
        program = tool.command[0]
        if shutil.which(program) is None and shutil.which(str(base / program)) is None:
            yield Problem(
                (*place, number, "command"), f"there is no program {program!r}", "install it, or give its path"
            )


def _learner(learner: LearnerConfig, base: Path) -> Iterator[Problem]:
    if isinstance(learner.advantage, PythonAdvantage):
        yield from _symbol(("learner", "advantage", "path"), learner.advantage.path, base)
    if isinstance(learner.loss, PythonLoss):
        yield from _symbol(("learner", "loss", "path"), learner.loss.path, base)
    if learner.kl and learner.kl.reference:
        yield from _model(("learner", "kl", "reference"), learner.kl.reference, base)
    if learner.sft:
        yield from _file(("learner", "sft", "path"), base / learner.sft.path)


def _model(place: KeyPath, path: str, base: Path) -> Iterator[Problem]:
    folder = model_folder(path, base)
    if folder is None:
        return
    if not folder.is_dir():
        yield _absent(place, folder, "folder")
    elif not (folder / "config.json").is_file():
        yield Problem(place, f"{path} has no config.json", "name a folder that was written by save_pretrained")
    elif not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield Problem(
            place,
            f"{path} is a model folder without a tokenizer",
            f"save the tokenizer beside the model: it needs {' or '.join(TOKENIZER_FILES)}",
        )


def _data(place: KeyPath, data: DataConfig, base: Path) -> Iterator[Problem]:
    yield from _package((*place, "kind"), data.kind)
    match data:
        case PythonData():
            yield from _symbol((*place, "path"), data.path, base)
        case JsonlData():
            yield from _file((*place, "path"), base / data.path)
        case DatasetData() if not (base / data.path).is_dir():
            yield _absent((*place, "path"), base / data.path, "folder")
        case ParquetData() if not (base / data.path).exists():
            if not glob.has_magic(data.path):
                yield _absent((*place, "path"), base / data.path, "file")
            elif not table_files(data.path, base):
                yield Problem((*place, "path"), f"nothing matches {base / data.path}", "mend the pattern")
    if isinstance(data, RowsConfig) and data.map is not None:
        yield from _symbol((*place, "map"), data.map, base)


def _filter(place: KeyPath, name: str | None, base: Path) -> Iterator[Problem]:
    if name is not None and ":" in name:
        yield from _symbol(place, name, base)


def _file(place: KeyPath, file: Path) -> Iterator[Problem]:
    if not file.is_file():
        yield _absent(place, file, "file")


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
    """Read, not run: a name that the file never binds cannot be imported from it."""
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError) as error:
        yield Problem(place, f"{file.name} is not valid Python: {error}", "mend the file")
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
