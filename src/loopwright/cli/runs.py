"""The argument of commands that look at a run: the folder must hold one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loopwright.errors import RunError
from loopwright.runs.run_folder import RunFolder

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (its trainer.run_dir).")]


def existing_run(path: Path) -> RunFolder:
    """The run in `path`. If there is none, the error names runs nearby."""
    folder = RunFolder(path)
    if folder.stored_config() is not None:
        return folder
    what = "is not the folder of a run" if path.exists() else "does not exist"
    near = [str(run) for run in _runs_near(path)]
    remedy = f"did you mean {' or '.join(near[:3])}?" if near else "name the trainer.run_dir of a run that has started"
    raise RunError(f"{path} {what}", remedy=remedy)


def _runs_near(path: Path) -> list[Path]:
    """The runs inside the folder, or else beside it."""
    for parent in (path, path.parent):
        found = sorted(config.parent for config in parent.glob("*/config.yaml"))
        if found:
            return found
    return []
