"""Exports the model of a checkpoint, or its adapter alone. The run is only read, so it may be training meanwhile.

The folder appears under its name when it is complete and on disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from loopwright.errors import ModelError, RunError
from loopwright.learn.exporting import write_adapter, write_model
from loopwright.runs.durable import draft_of, flush, flush_tree
from loopwright.runs.kept_weights import LATEST, Weights, checkpoint_weights
from loopwright.runs.run_folder import RunFolder

TRIES = 3
"""How often an export begins again because the run has removed the checkpoint meanwhile."""


class ExportKind(StrEnum):
    """What is written."""

    MODEL = "model"
    """The whole model. Adapters are merged into it."""
    ADAPTER = "adapter"
    """Only the adapter, as peft writes it."""


def export_model(run: RunFolder, out: Path, step: int | None = None, kind: ExportKind = ExportKind.MODEL) -> Weights:
    """Write the model of the latest checkpoint, or of `step`, to the new folder `out`, and say which one it was."""
    target = out.resolve()
    _require_free(target)
    dtype = ((run.stored_config() or {}).get("model") or {}).get("dtype", "float32")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind is ExportKind.ADAPTER:
            return _written(run, target, step, write_adapter)
        return _written(run, target, step, lambda source, draft: write_model(source, draft, dtype))
    except OSError as error:
        raise RunError(
            f"the model could not be written to {target}: {error}",
            remedy="free some space there, or choose another --out; the run is as it was",
        ) from error


def _require_free(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise RunError(f"{target} is not empty", remedy="choose another --out, or empty the folder yourself")
    if target.exists() and not target.is_dir():
        raise RunError(f"{target} is a file", remedy="choose another --out: a folder that does not exist yet")


def _written(run: RunFolder, target: Path, step: int | None, write: Callable[[Path, Path], None]) -> Weights:
    draft = draft_of(target)
    for _ in range(TRIES):
        weights = checkpoint_weights(run, LATEST if step is None else str(step))
        shutil.rmtree(draft, ignore_errors=True)
        try:
            write(Path(weights.path), draft)
            if _is_there(weights):
                flush_tree(draft)
                draft.rename(target)
                flush(target.parent)
                return weights
        except (ModelError, OSError):
            # A run removes its old checkpoints, also one that is being read.
            if _is_there(weights):
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    raise RunError(
        f"{run.path} removed the checkpoints while they were read",
        remedy="raise trainer.keep_checkpoints, which may change in a run that goes on",
    )


def _is_there(weights: Weights) -> bool:
    """Whether the checkpoint still has its name. One is renamed before it is removed, so what was read is whole."""
    return Path(weights.path).is_dir()
