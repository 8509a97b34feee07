"""The folder of a run: its layout, its lock, and the config that it belongs to. docs/run-folder.md describes it.

At most one process uses a run folder. A folder that is not a run is never written to or emptied.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loopwright.config.migration import with_new_names
from loopwright.errors import ConfigChangedError, RunError, RunLockedError
from loopwright.runs.config_changes import config_changes
from loopwright.runs.durable import draft_of, write_whole
from loopwright.track.jsonl import EVENTS, METRICS
from loopwright.track.tensorboard import FOLDER as TENSORBOARD

HEADER = "# The config of this Loopwright run. Written by Loopwright; edit your own config file instead.\n"

ID_BYTES = 8
MOST_CONFIG_BYTES, MOST_SETTINGS = 4 << 20, 100_000

# Use libyaml if PyYAML was built with it: it is ten times as fast as the Python code.
_FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FastDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths in a run's folder. Getting a path does not create it."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def base(self) -> Path:
        return self.path / "base"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def id(self) -> Path:
        """The name of the run, which no other run has."""
        return self.path / "id"

    @property
    def door(self) -> Path:
        """Where an open run can be sampled from, and the key."""
        return self.path / "door.json"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts.sqlite"

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def status(self) -> Path:
        """What an open run is doing now; the last word of one that is not open."""
        return self.path / "status.json"

    @property
    def engine_log(self) -> Path:
        """The log of an engine that runs in its own process."""
        return self.path / "engine.log"

    @property
    def ranks(self) -> Path:
        """The logs of the learner's ranks, one file for each."""
        return self.path / "ranks"

    @property
    def follower_log(self) -> Path:
        """What the processes write that send metrics to W&B and MLflow."""
        return self.path / "followers.log"

    @property
    def ui(self) -> Path:
        """Where the run's own page is, with `track.ui`."""
        return self.path / "ui.json"

    @property
    def ui_key(self) -> Path:
        """The key of that page."""
        return self.path / "ui.key"

    @property
    def ui_log(self) -> Path:
        return self.path / "ui.log"

    @property
    def actors(self) -> Path:
        """The logs of actors, one file for each."""
        return self.path / "actors"

    @property
    def ray(self) -> Path:
        """Where the open run has the files of its Ray cluster."""
        return self.path / "ray.json"

    def server_state(self, number: int) -> Path:
        """What the guard of inference server `number` knows of it, for the run that cleans up after a killed guard."""
        return self.path / f"server-{number}.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / TENSORBOARD

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def evals(self) -> Path:
        """The evaluations of `loopwright eval`. Each is a folder like this one."""
        return self.path / "evals"

    @property
    def samples(self) -> Path:
        """The rollouts of `loopwright rollout`. Each call has a folder like this one."""
        return self.path / "samples"

    @property
    def rejudged(self) -> Path:
        """What other judgers say of the rollouts. Each has a folder of its name."""
        return self.path / "rejudged"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @staticmethod
    @contextmanager
    def open(
        path: Path, config_snapshot: Mapping[str, Any], *, fresh: bool = False, allow_config_change: bool = False
    ) -> Iterator[RunFolder]:
        """Lock the folder until the block ends, for a new run or for one that continues.

        `fresh` empties it first. Otherwise a config that differs from the run's config raises ConfigChangedError,
        unless only free settings differ or `allow_config_change` is set. `adopt` then stores it as the run's config.
        """
        folder = RunFolder(path)
        config = _plain(config_snapshot)
        _require_run_or_empty(folder)
        with _locked(folder):
            previous = None if fresh else folder.stored_config()
            if previous is None:
                _empty(folder, spare=() if fresh else (folder.evals, folder.samples))
                folder.adopt(config)
            elif not allow_config_change:
                _require_same(folder, previous, config)
            # Left by a process that was killed. Its door is closed, and its cluster is gone.
            folder.door.unlink(missing_ok=True)
            folder.ray.unlink(missing_ok=True)
            if not folder.id.is_file():
                write_whole(folder.id, f"{secrets.token_hex(ID_BYTES)}\n")
            yield folder

    def adopt(self, config_snapshot: Mapping[str, Any], base: Path | None = None) -> None:
        """Store this as the config of the run. A run that continues calls it when it is certain that it can.

        `base` is the folder that relative paths in the config start from.
        """
        write_whole(self.config, HEADER + yaml.safe_dump(_plain(config_snapshot), sort_keys=False))
        if base is not None:
            write_whole(self.base, f"{base}\n")

    def stored_id(self) -> str:
        """The name of the run. It is made once, and stays the same when the run continues."""
        return self.id.read_text("ascii").strip()

    def stored_base(self) -> Path:
        """The folder that relative paths in the run's config start from."""
        if not self.base.is_file():
            raise RunError(
                f"{self.path} does not say where the paths in its config start",
                remedy="name the config file of the run instead of its folder",
            )
        return Path(self.base.read_text("utf-8").rstrip("\n"))

    def stored_config(self) -> dict[str, Any] | None:
        """The config of the run in this folder, under today's names, or None when there is no run yet."""
        if not self.config.is_file():
            return None
        try:
            with self.config.open("rb") as file:
                text = file.read(MOST_CONFIG_BYTES + 1)
            if len(text) > MOST_CONFIG_BYTES:
                raise ValueError(f"it has more than {MOST_CONFIG_BYTES:,} bytes")
            config = yaml.safe_load(text)
            _require_small(config)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.config} cannot be read: {error}",
                remedy="restore it from your config file, or start over with --fresh",
            ) from error
        return with_new_names(config) if isinstance(config, dict) else None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as it is after storing and reading, so that a tuple and a list compare equal."""
    text = yaml.dump(dict(config), Dumper=_FastDumper, sort_keys=False)
    return dict(yaml.load(text, Loader=_FastLoader))


def _require_small(config: Any) -> None:
    """Raise if it has too many settings: a file of a few lines may name its own parts again and again, or without
    end."""
    count, left = 0, [config]
    while left:
        value = left.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > MOST_SETTINGS:
            raise ValueError(f"it has more than {MOST_SETTINGS:,} settings")
        left += inner


def _require_run_or_empty(folder: RunFolder) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError(f"{folder.path} is not a folder", remedy="choose another trainer.run_dir")
    if not folder.path.exists() or holds_run(folder):
        return
    # A run that died while it started leaves the first two. `loopwright eval` and `rollout` make the others.
    ours = {folder.lock, draft_of(folder.config), folder.evals, folder.samples}
    strangers = sorted(entry.name for entry in folder.path.iterdir() if entry not in ours)
    if strangers:
        raise RunError(
            f"{folder.path} is not a Loopwright run, and it is not empty: it holds {', '.join(strangers[:3])}",
            remedy="choose another trainer.run_dir, or empty the folder yourself",
        )


def holds_run(folder: RunFolder) -> bool:
    """Whether it is the folder of a run, and not one with a config file of somebody else."""
    if not folder.config.is_file():
        return False
    with folder.config.open("rb") as file:
        return file.read(len(HEADER.encode())) == HEADER.encode()


def _empty(folder: RunFolder, spare: Collection[Path]) -> None:
    """Remove everything except for the lock that we hold, and `spare`.

    The config file is emptied first and removed last. If this is interrupted, the folder is still recognised as a run
    that must be removed.
    """
    if folder.config.exists():
        write_whole(folder.config, HEADER)
    for entry in folder.path.iterdir():
        if entry in (folder.lock, folder.config, *spare):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextmanager
def _locked(folder: RunFolder) -> Iterator[None]:
    """Hold the folder's lock. The kernel releases it when the process dies in any way."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = folder.lock.open("a+")
    except OSError as error:
        raise RunError(
            f"{folder.path} cannot be written: {error}",
            remedy="choose another trainer.run_dir, or change its permissions",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise _taken(folder.path, file.read().strip()) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _taken(path: Path, pid: str) -> RunLockedError:
    return RunLockedError(
        f"{path} is in use by process {pid or 'unknown'}",
        remedy="wait for that run or stop it, or choose another trainer.run_dir",
        pid=int(pid) if pid.isdigit() else None,
    )


def _require_same(folder: RunFolder, previous: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    changes = config_changes(previous, config)
    if changes:
        raise ConfigChangedError(
            f"the config differs from the one that the run in {folder.path} was started with:\n  "
            + "\n  ".join(changes),
            remedy="undo the changes, choose another trainer.run_dir, start over with --fresh, "
            "or accept them with --allow-config-change",
            changes=changes,
        )
