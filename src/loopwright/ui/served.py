"""Which runs a server shows: one, or those directly in a folder. No name and no link leads out of it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from threading import Lock
from typing import Any

from loopwright.errors import RefusedError, RunError
from loopwright.runs.run_folder import RunFolder, holds_run
from loopwright.ui.run_view import RunView

MOST_OPEN = 8
"""How many runs stay open. What a page has of the others is read again."""
LONGEST_NAME = 200


class ServedRuns:
    """The runs in `root`, or `root` itself if it is a run."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunError(f"{root} is not a folder", remedy="name the folder of a run, or a folder of runs")
        self._root = root.resolve()
        self._is_run = is_run(self._root)
        self._open: OrderedDict[str, RunView] = OrderedDict()
        self._told: dict[str, tuple[Hashable, dict[str, Any]]] = {}
        self._lock = Lock()

    @property
    def root(self) -> Path:
        return self._root

    @property
    def single(self) -> str | None:
        """The name of the run, if there is only this one."""
        return self._root.name if self._is_run else None

    def names(self) -> list[str]:
        """The runs, the latest first."""
        if self._is_run:
            return [self._root.name] if is_run(self._root) else []
        try:
            with os.scandir(self._root) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        runs = [name for name in found if is_run(self._root / name) or was_run(self._root / name)]
        return sorted(runs, key=lambda name: (-_changed(self._root / name), name))

    def view(self, name: str) -> RunView:
        """The run of that name. Raises if it is none of the runs."""
        path = self._root if self._is_run else self._root / name
        known = name == self._root.name if self._is_run else name not in ("", ".", "..") and "/" not in name
        is_inside = known and "\0" not in name and len(name) <= LONGEST_NAME and not path.is_symlink()
        if not is_inside or not is_run(path):
            with self._lock:
                self._open.pop(name, None)
            if is_inside and was_run(path):
                raise RefusedError(
                    "config.yaml of this run is empty, damaged, or cannot be read",
                    remedy="restore it from your config file",
                    status=404,
                )
            raise RefusedError(
                f"there is no run {name[:80]!r} here",
                remedy="choose one from the list; it may have been deleted",
                status=404,
            )
        with self._lock:
            view = self._open.pop(name, None) or RunView(RunFolder(path))
            self._open[name] = view
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return view

    def told(self, name: str, make: Callable[[RunView], dict[str, Any]]) -> dict[str, Any]:
        """What `make` says of a run, made again when the run's files have changed. A folder may hold hundreds of runs,
        and its list is asked for every few seconds."""
        path = self._root if self._is_run else self._root / name
        mark = _mark(path)
        with self._lock:
            known, told = self._told.get(name, (None, {}))
        if known != mark:
            told = make(self.view(name))
            with self._lock:
                self._told[name] = mark, told
        return told


def is_run(path: Path) -> bool:
    """Whether the folder holds the config of a run, and no link in its place. One that must not be read is none."""
    folder = RunFolder(path)
    try:
        return not folder.config.is_symlink() and holds_run(folder)
    except OSError:
        return False


def was_run(path: Path) -> bool:
    """Whether the folder holds what only runs have, and its config was lost or cannot be read."""
    folder = RunFolder(path)
    try:
        has_config = folder.config.is_file() and not folder.config.is_symlink()
        return has_config and folder.id.is_file() and folder.lock.is_file() and not is_run(path)
    except OSError:
        return False


def _mark(path: Path) -> Hashable:
    """Changes when a file changes that the list of runs is made of."""
    marks: list[Hashable] = []
    for name in ("config.yaml", "metrics.jsonl", "events.jsonl"):
        try:
            found = (path / name).stat()
        except OSError:
            marks.append(None)
        else:
            marks.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(marks)


def _changed(path: Path) -> float:
    """When the run last told something."""
    for name in ("metrics.jsonl", "config.yaml"):
        try:
            return (path / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
