"""Finds the weights that a run has kept: its export, or one of its checkpoints. It only reads, so the run may be
active."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from loopwright.errors import RunError
from loopwright.runs.checkpoint import Checkpoint, Checkpoints
from loopwright.runs.run_folder import RunFolder

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Weights:
    """`path` can be used as `model.path`, `name` can be part of a file name, and `step` is their last train step."""

    path: str
    name: str
    step: int = 0


def newest_weights(folder: RunFolder) -> Weights:
    """The exported model, or the model of the latest checkpoint."""
    latest = _checkpoints(folder).latest()
    if (folder.export / "config.json").exists():
        return Weights(str(folder.export.resolve()), "export", latest.step if latest else 0)
    return _of(folder, latest)


def checkpoint_weights(folder: RunFolder, which: str) -> Weights:
    """The weights of one step, or of the `latest` checkpoint."""
    if which == LATEST:
        return _of(folder, _checkpoints(folder).latest())
    if not which.isdecimal():
        raise RunError(f"there is no checkpoint {which!r}", remedy=f"name a train step, or {LATEST!r}")
    return _of(folder, _checkpoints(folder).at(int(which)))


def named_weights(path: str) -> Weights:
    """The weights of any model, also one that Loopwright did not make."""
    return Weights(path, re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).name))


def _checkpoints(folder: RunFolder) -> Checkpoints:
    return Checkpoints(folder.checkpoints, keep=1)


def _of(folder: RunFolder, checkpoint: Checkpoint | None) -> Weights:
    if checkpoint is None:
        raise RunError(
            f"{folder.path} has no weights yet", remedy="wait for its first checkpoint (trainer.checkpoint_every)"
        )
    return Weights(str(checkpoint.path.resolve()), checkpoint.path.name, checkpoint.step)
