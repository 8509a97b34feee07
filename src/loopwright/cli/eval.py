"""`loopwright eval`: evaluate a model, a checkpoint or a finished run, without training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.arguments import Overrides
from loopwright.cli.event_loop import run_async
from loopwright.cli.models import models_folder
from loopwright.cli.sampled_weights import (
    CheckpointStep,
    ConfigOrRun,
    EngineKindOption,
    EngineUrl,
    Fresh,
    Model,
    Out,
    SamplingTarget,
    find_target,
)
from loopwright.cli.show_errors import FAILED, INTERRUPTED, show_error
from loopwright.config import Purpose
from loopwright.types import ServerKind

if TYPE_CHECKING:
    from loopwright.trainers.evaluator import EvalReport


def evaluate(
    where: ConfigOrRun,
    overrides: Overrides = None,
    model: Model = None,
    checkpoint: CheckpointStep = None,
    engine: EngineUrl = None,
    engine_kind: EngineKindOption = ServerKind.LOOPWRIGHT,
    task_set: Annotated[str | None, typer.Option("--task-set", help="Only this evaluation set.")] = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    fresh: Fresh = False,
) -> None:
    """Evaluate: of a run, the model that it has trained; of a config, the model that it starts from."""
    target = find_target(where, overrides, model, checkpoint, engine, engine_kind, Purpose.EVALUATE)
    folder = out or target.run.evals / target.weights.name
    try:
        report = run_async(_evaluate(target, folder, task_set, fresh, quiet=as_json))
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command evaluates again what was not finished.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        _print_json(target, folder, report)
    else:
        _print_table(report.metrics)
        typer.echo(f"\nlook at it  loopwright show {folder} --eval")
    for error in report.errors:
        show_error(error)
    if report.errors or not any(_scored(report.metrics)):
        raise typer.Exit(FAILED)


async def _evaluate(
    target: SamplingTarget, folder: Path, task_set: str | None, fresh: bool, *, quiet: bool
) -> EvalReport:
    from loopwright.build import evaluate_weights
    from loopwright.track.console import Console

    shown = target.loaded.config.track.console and not quiet
    return await evaluate_weights(
        target.loaded,
        target.weights,
        folder,
        cache=models_folder(),
        task_set=task_set,
        fresh=fresh,
        console=Console(title=f"evaluating {target.weights.path}") if shown else None,
        remote=target.engine,
    )


def _print_json(target: SamplingTarget, folder: Path, report: EvalReport) -> None:
    facts = {
        "model": target.weights.path,
        "step": target.weights.step,
        "folder": str(folder),
        "metrics": dict(report.metrics),
        "errors": [error.message for error in report.errors],
    }
    typer.echo(json.dumps(facts, indent=1))


def _print_table(metrics: Mapping[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("task set", "sampling", "metric", box=None, pad_edge=False, header_style="dim")
    for heading in ("value", "± error", "tasks", "failed rollouts"):
        table.add_column(heading, justify="right")
    for row in _rows(metrics):
        table.add_row(*row)
    Console(highlight=False).print(table)


def _rows(metrics: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    from loopwright.track.console_text import evaluations, measured

    for (task_set, mode), numbers in evaluations(metrics).items():
        for name, value in {"reward": numbers.get("reward"), **measured(numbers)}.items():
            error, tasks = numbers.get(f"{name}/stderr"), numbers.get(f"{name.partition('/')[0]}/tasks", 0.0)
            yield (
                task_set,
                mode,
                name,
                "no score" if value is None else f"{value:.3f}",
                "" if error is None else f"{error:.3f}",
                f"{tasks:.0f} of {numbers['tasks']:.0f}",
                f"{numbers['failed']:.0f}" if numbers["failed"] else "",
            )


def _scored(metrics: Mapping[str, float]) -> Iterator[bool]:
    """For each evaluation, whether it has at least one score."""
    return (value > 0 for name, value in metrics.items() if name.endswith("/scored"))
