"""The arguments of commands that sample without training: from which config or run, and from which weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.runs import existing_run
from loopwright.cli.show_errors import show_warning
from loopwright.config import Loaded, Purpose, load
from loopwright.config.extras import require
from loopwright.runs.kept_weights import Weights, checkpoint_weights, named_weights, newest_weights
from loopwright.runs.run_folder import RunFolder
from loopwright.types import ServerKind

if TYPE_CHECKING:
    from loopwright.build import RemoteEngine

ConfigOrRun = Annotated[
    Path, typer.Argument(metavar="CONFIG_OR_RUN", help="A config file, or the folder of a run (its trainer.run_dir).")
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="PATH", help="Another model: a folder, or a name as in model.path.")
]
CheckpointStep = Annotated[
    str | None, typer.Option("--checkpoint", metavar="STEP|latest", help="A checkpoint of the run.")
]
EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="URL",
        help="An engine that runs already: `loopwright engine` or a vLLM server; --model names its tokenizer.",
    ),
]
EngineKindOption = Annotated[
    ServerKind, typer.Option("--engine-kind", help="Of which kind the --engine is: loopwright, vllm, sglang.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to keep the trajectories.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what is in that folder and start over.")]


@dataclass(frozen=True, slots=True)
class SamplingTarget:
    """Which weights to sample from, with which config, and the folder of their run."""

    loaded: Loaded
    weights: Weights
    run: RunFolder
    engine: RemoteEngine | None = None
    """The engine that has the weights, if they are not loaded here."""


def find_target(
    where: Path,
    overrides: Sequence[str] | None,
    model: str | None,
    checkpoint: str | None,
    engine: str | None,
    kind: ServerKind,
    purpose: Purpose,
) -> SamplingTarget:
    """What to sample from: the model that a config names, or the model that a run has trained, unless an option names
    another."""
    if engine is not None and checkpoint is not None:
        raise typer.BadParameter("it has weights of its own; leave out --checkpoint", param_hint="--engine")
    if model is not None and checkpoint is not None:
        raise typer.BadParameter("it names another model; leave out --checkpoint", param_hint="--model")
    run = existing_run(where) if where.is_dir() else None
    loaded = load(
        run.config if run else where,
        overrides or [],
        os.environ,
        files=True,
        base=run.stored_base() if run else None,
        purpose=purpose,
        other_model=run is not None or any(given is not None for given in (model, checkpoint, engine)),
    )
    # The warnings of a run were shown when it was trained.
    for warning in () if run else loaded.warnings:
        show_warning(warning)
    folder = run or RunFolder(Path(loaded.config.trainer.run_dir))
    if engine is not None:
        return SamplingTarget(loaded, named_weights(engine), folder, _remote(engine, kind, model))
    if model is not None:
        weights = named_weights(str(Path(model).resolve()) if Path(model).is_dir() else model)
    elif checkpoint is not None:
        weights = checkpoint_weights(folder, checkpoint)
    elif run is not None:
        weights = newest_weights(run)
    else:
        weights = named_weights(loaded.config.model.path)
    return SamplingTarget(loaded, weights, folder)


def _remote(url: str, kind: ServerKind, model: str | None) -> RemoteEngine:
    require("serve")
    from loopwright.build import RemoteEngine
    from loopwright.engines.http.process import KEY_VARIABLE

    # Remove it from the environment, so that no child process sees it.
    key = os.environ.pop(KEY_VARIABLE, None)
    return RemoteEngine(url, key, model, models_folder(), kind=kind)
