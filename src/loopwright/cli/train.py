"""`loopwright train`: start or continue a run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from loopwright.cli.arguments import ConfigFile, Overrides
from loopwright.cli.event_loop import run_async
from loopwright.cli.models import models_folder
from loopwright.cli.show_errors import show_warning
from loopwright.config import Loaded, load
from loopwright.weights.folder import remove_held

STOPPED = 130
"""The exit code of a process that was told twice to stop."""
STOPS = (signal.SIGINT, signal.SIGTERM)


def train(
    file: ConfigFile,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the run in the folder and start over.")] = False,
    allow_config_change: Annotated[
        bool, typer.Option("--allow-config-change", help="Go on although the config differs from the run's.")
    ] = False,
) -> None:
    """Train. The same command again goes on where the run was stopped, killed or interrupted."""
    loaded = load(file, overrides or [], os.environ, files=True)
    for warning in loaded.warnings:
        show_warning(warning)
    run_async(_train(loaded, fresh, allow_config_change))


async def _train(loaded: Loaded, fresh: bool, allow_config_change: bool) -> None:
    # Import heavy modules only after the config was checked.
    from loopwright.build import open_run
    from loopwright.runs.final_summary import print_summary
    from loopwright.runs.report.gather import summarise
    from loopwright.track.console import Console

    config = loaded.config
    console = None
    if config.track.console:
        console = Console(
            steps=config.trainer.steps,
            rollouts_per_step=config.trainer.groups_per_step * config.rollout.samples_per_task,
            title=str(config.trainer.run_dir),
        )
        typer.echo(f"loading {config.model.path} ...")
    opened = open_run(
        loaded,
        cache=models_folder(),
        stop=_stop_on_signals(),
        fresh=fresh,
        allow_config_change=allow_config_change,
        console=console,
        env=os.environ,
    )
    async with opened as run:
        finished = await run.train()
    if console is not None:
        summary = summarise(run.folder)
        print_summary(summary, finished=finished, lost_steps=run.lost_steps, command=_command())


def _command() -> str:
    """The command that runs this program again: its name if it is on the PATH."""
    return "loopwright" if shutil.which("loopwright") else sys.argv[0]


def _stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second one frees the memory that would outlive the
    process, and ends it at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    told = False

    def on_signal(_: int, frame: FrameType | None) -> None:
        nonlocal told
        if told:
            for number in STOPS:
                signal.signal(number, signal.SIG_DFL)
            remove_held()
            os._exit(STOPPED)
        told = True
        loop.call_soon_threadsafe(stop.set)
        typer.echo("\nStopping after a checkpoint. Once more to stop at once.", err=True)

    # The loop's own handlers would have to wait for user code that blocks the loop.
    for number in STOPS:
        signal.signal(number, on_signal)
    return stop
