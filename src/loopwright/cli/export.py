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
    merged: Annotated[
        bool, typer.Option("--merged", help="The whole model, with its adapters merged into it. The default.")
    ] = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the adapter of a run with learner.lora, as peft writes it.")
    ] = False,
) -> None:
    """Write the trained model as a model folder: weights and tokenizer, for transformers, vLLM and others.

    It only reads the run, so it works while the run is training.
    """
    if merged and adapter:
        raise typer.BadParameter("the model has its adapter in it, or it has not; leave out one", param_hint="--merged")
    folder = existing_run(run)
    from loopwright.build import ExportKind, export_model

    weights = export_model(folder, out, step, ExportKind.ADAPTER if adapter else ExportKind.MODEL)
    what = "adapter" if adapter else "model"
    typer.echo(f"{out}: the {what} of train step {weights.step} of {folder.path}")
