"""Finds the folder of a task of Harbor: the task's own path, else its instance id under a root, else a template.

A folder that does not hold what the task was read from is refused: its verifier would judge another task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from loopwright.agents.runners.fields import filled
from loopwright.config import HarborRunnerConfig
from loopwright.config.harbor_digest import task_digest
from loopwright.errors import SetupError
from loopwright.types import Task


def task_folder(task: Task, config: HarborRunnerConfig, base: Path) -> Path:
    """The first of the three that is a folder with a task.toml. Raises SetupError, also if its files have changed."""
    tried = list(_candidates(task, config, base))
    for folder in tried:
        if (folder / "task.toml").is_file():
            _check_unchanged(task, folder)
            return folder.resolve()
    looked = ", ".join(map(str, tried)) or "nowhere: it has no path, and the runner has neither root nor folder"
    raise SetupError(
        f"task {task.id!r}: there is no task of Harbor; looked at {looked}",
        remedy="use data of kind harbor, or set the runner's root or folder",
    )


def _check_unchanged(task: Task, folder: Path) -> None:
    known = task.metadata.get("digest")
    if not isinstance(known, str):
        return
    try:
        now = task_digest(folder)
    except OSError as error:
        words = f"task {task.id!r}: {error.filename} cannot be read: {error.strerror}"
        raise SetupError(words, remedy="see who may read the task's folder") from error
    if now != known:
        raise SetupError(
            f"task {task.id!r}: {folder} has changed since the task was read",
            remedy="start the run again, or, if its tasks are in a file, write it again with `loopwright data harbor`",
        )


def _candidates(task: Task, config: HarborRunnerConfig, base: Path) -> Iterator[Path]:
    own = task.metadata.get("path")
    if isinstance(own, str) and own:
        yield base / own
    if config.root is not None:
        yield base / config.root / _inside(task, str(task.metadata.get("instance_id", task.id)))
    if config.folder is not None:
        chosen = filled(config.folder, task, {"config": "."})
        if PurePath(chosen).parts.count("..") > PurePath(config.folder).parts.count(".."):
            words = f"task {task.id!r}: {chosen!r} leads out of the folder that the config names"
            raise SetupError(words, remedy="rename the task")
        yield base / filled(config.folder, task, {"config": str(base)})


def _inside(task: Task, name: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise SetupError(f"task {task.id!r}: {name!r} leads out of the runner's root", remedy="rename the task")
    return name
