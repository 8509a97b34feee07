"""`loopwright export`: the model of a run's checkpoint, as a folder for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loopwright.cli.runs import RunPath, existing_run


def export(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder for the model.")],
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="The train step whose checkpoint is exported; else the latest.")
    ] = None,
) -> None:
    """Write the trained model as a model folder: weights and tokenizer, for transformers, vLLM and others.

    It only reads the run, so it works while the run is training.
    """
    folder = existing_run(run)
    from loopwright.build import export_model

    weights = export_model(folder, out, step)
    typer.echo(f"{out}: the model of train step {weights.step} of {folder.path}")
