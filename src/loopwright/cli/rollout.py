"""`loopwright rollout`: rollouts and rewards without a trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from loopwright.cli.show_errors import INTERRUPTED
from loopwright.config import Purpose
from loopwright.runs.run_folder import RunFolder
from loopwright.types import ServerKind

if TYPE_CHECKING:
    from loopwright.build import Made
    from loopwright.runs.gathered import Gathered


def rollout(
    where: ConfigOrRun,
    overrides: Overrides = None,
    groups: Annotated[
        int | None, typer.Option("--groups", min=1, help="Tasks in all; trainer.groups_per_step if not given.")
    ] = None,
    model: Model = None,
    checkpoint: CheckpointStep = None,
    engine: EngineUrl = None,
    engine_kind: EngineKindOption = ServerKind.LOOPWRIGHT,
    out: Out = None,
    jsonl: Annotated[
        Path | None, typer.Option("--jsonl", metavar="FILE", help="Also write every rollout as a JSON line.")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Sample rollouts and score them, without training. The same command goes on where it was stopped."""
    target = find_target(where, overrides, model, checkpoint, engine, engine_kind, Purpose.ROLL_OUT)
    folder = RunFolder(out or target.run.samples / target.weights.name)
    wanted = groups or target.loaded.config.trainer.groups_per_step
    try:
        made = run_async(_roll_out(target, folder.path, wanted, fresh))
    except KeyboardInterrupt:
        typer.echo("\nStopped. What is finished is stored, and the same command goes on from here.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    from loopwright.runs.gathered import gathered, write_lines

    if jsonl is not None:
        write_lines(folder, jsonl)
    for label, text in _results(gathered(folder), made, folder, jsonl):
        typer.echo(f"{label:<12} {text}")


async def _roll_out(target: SamplingTarget, folder: Path, groups: int, fresh: bool) -> Made:
    from loopwright.build import roll_out
    from loopwright.track.console import Console

    config = target.loaded.config
    console = None
    if config.track.console:
        console = Console(
            title=f"rollouts of {target.weights.path}",
            steps=math.ceil(groups / config.trainer.groups_per_step),
            rollouts_per_step=min(groups, config.trainer.groups_per_step) * config.rollout.samples_per_task,
        )
    return await roll_out(
        target.loaded,
        target.weights,
        folder,
        groups=groups,
        cache=models_folder(),
        fresh=fresh,
        console=console,
        remote=target.engine,
    )


def _results(found: Gathered, made: Made, folder: RunFolder, jsonl: Path | None) -> Iterator[tuple[str, str]]:
    yield (
        "groups",
        f"{found.groups}, {made.groups} of them new"
        + (f"; {found.failed_groups} failed and were replaced" if found.failed_groups else ""),
    )
    yield "reward", f"{found.reward:.3f} over {found.scored} rollouts" if found.reward is not None else "no score"
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(found.failures.items()))
    yield "failures", causes or "none"
    if made.seconds:
        yield "speed", f"{made.tokens / made.seconds:.0f} sampled tokens/s ({made.tokens} in {made.seconds:.1f} s)"
    if jsonl is not None:
        yield "lines", str(jsonl)
    yield "look at it", f"loopwright show {folder.path}"
