"""Checkpoints. A checkpoint is complete or does not exist (D2).

It is written under another name, flushed to disk and then renamed, so a folder named `step-…` is complete. To delete
one, it is renamed first and then removed.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.errors import CheckpointError, LearnerLostError, LoopwrightError
from loopwright.runs.durable import flush, flush_tree

FORMAT = 1
STATE = "state.json"

_NAME = re.compile(r"step-(\d{6,})")
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its folder, and the state that was saved with it."""

    step: int
    path: Path
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints in `folder`. Only the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    async def write(self, step: int, writer: Callable[[Path], Awaitable[None]], state: Mapping[str, Any]) -> Checkpoint:
        """Let `writer` fill a folder, save `state` (plain JSON) in it, and make it the checkpoint of `step`.

        If the step already has a checkpoint, that one is kept: a run that is back at a step has the state that was
        saved there. Raises CheckpointError if it cannot be written, and the LearnerLostError of the writer as it is.
        """
        target = self._folder / f"step-{step:06d}"
        if target.exists():
            return _read(target, step, fallback=None)
        unfinished = self._folder / f"{_UNFINISHED}{target.name}"
        try:
            _discard(unfinished)
            unfinished.mkdir(parents=True)
            await writer(unfinished)
            (unfinished / STATE).write_text(
                json.dumps({"format": FORMAT, "step": step, "state": dict(state)}, indent=1)
            )
            await asyncio.to_thread(flush_tree, unfinished)
            unfinished.rename(target)
            flush(self._folder)
        except LearnerLostError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        except Exception as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise _not_written(step, error) from error
        self._prune(spare=step)
        return Checkpoint(step, target, dict(state))

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None. This only reads, so any process may call it while a run is writing."""
        found = self._found()
        if not found:
            return None
        (step, path), *older = reversed(found)
        return _read(path, step, fallback=older[0][1].name if older else None)

    def newest(self, before: int) -> Checkpoint | None:
        """The newest checkpoint of a step below `before`, or None. This only reads."""
        older = [(step, path) for step, path in self._found() if step < before]
        return _read(older[-1][1], older[-1][0], fallback=None) if older else None

    def steps(self) -> tuple[int, ...]:
        """The steps that have a checkpoint, in order."""
        return tuple(step for step, _ in self._found())

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of `step`. This only reads."""
        found = dict(self._found())
        if step not in found:
            known = ", ".join(map(str, found)) or "none"
            raise CheckpointError(
                f"{self._folder} has no checkpoint of step {step}",
                remedy=f"choose one of the steps that it has: {known}",
            )
        return _read(found[step], step, fallback=None)

    def clear_unfinished(self) -> None:
        """Remove what a crash left. Only the process that holds the run's lock may call this."""
        for leftover in self._folder.glob(f"{_UNFINISHED}*"):
            _discard(leftover)

    def _found(self) -> list[tuple[int, Path]]:
        """Steps and folders, oldest first."""
        if not self._folder.is_dir():
            return []
        named = ((_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted((int(match[1]), path) for match, path in named if match)

    def _prune(self, spare: int) -> None:
        found = self._found()
        for step, path in found[: max(0, len(found) - self._keep)]:
            if step == spare:
                continue
            # An incomplete checkpoint must not keep the name of a complete one.
            doomed = path.rename(path.with_name(f"{_UNFINISHED}{path.name}"))
            _discard(doomed)


def _discard(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _read(path: Path, step: int, fallback: str | None) -> Checkpoint:
    try:
        saved = json.loads((path / STATE).read_text())
        if saved["format"] != FORMAT:
            raise _damaged(path, f"it has format {saved['format']}, this Loopwright reads format {FORMAT}", fallback)
        if saved["step"] != step:
            raise _damaged(path, f"its {STATE} is that of step {saved['step']}", fallback)
        return Checkpoint(step, path, dict(saved["state"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its {STATE} cannot be read ({error})", fallback) from error


def _damaged(path: Path, why: str, fallback: str | None) -> CheckpointError:
    way_out = f"to go on from {fallback}, delete the folder {path}" if fallback else "start over with --fresh"
    return CheckpointError(f"checkpoint {path} cannot be used: {why}", remedy=way_out, path=str(path))


def _not_written(step: int, error: Exception) -> CheckpointError:
    what = f"the checkpoint of step {step} could not be written"
    if isinstance(error, LoopwrightError):
        return CheckpointError(f"{what}: {error.message}", remedy=error.remedy, step=step)
    return CheckpointError(
        f"{what}: {type(error).__name__}: {error}",
        remedy="free some disk space; earlier checkpoints are intact, and the same command goes on from the newest one",
        step=step,
    )
