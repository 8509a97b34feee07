"""`loopwright replay`: do a recorded train step again, and see whether it gives the same numbers."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.runs import RunPath, existing_run
from loopwright.cli.show_errors import FAILED
from loopwright.config import Purpose, load

if TYPE_CHECKING:
    from loopwright.runs.replay import Replay


def replay(
    run: RunPath,
    step: Annotated[int, typer.Option("--step", min=1, help="The train step to do again.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Do a train step again, from the nearest checkpoint and the recorded groups; exit 1 when its numbers differ.

    Nothing in the folder of the run changes.
    """
    folder = existing_run(run)
    loaded = load(
        folder.config, (), os.environ, files=True, base=folder.stored_base(), purpose=Purpose.REPLAY, other_model=True
    )
    from loopwright.build import replay_step

    replayed = asyncio.run(replay_step(loaded, folder, step, cache=models_folder()))
    if as_json:
        _print_json(replayed)
    else:
        _print_table(replayed)
    if not replayed.equal:
        raise typer.Exit(FAILED)


def _print_json(replayed: Replay) -> None:
    numbers = {
        one.name: {"recorded": one.recorded, "replayed": one.replayed, "equal": one.equal, "tolerance": one.tolerance}
        for one in replayed.comparisons
    }
    facts = {"step": replayed.step, "start": replayed.start, "equal": replayed.equal, "numbers": numbers}
    typer.echo(json.dumps(facts, indent=1))


def _print_table(replayed: Replay) -> None:
    from rich.console import Console
    from rich.table import Table

    start = f"the checkpoint of step {replayed.start}" if replayed.start else "the initial weights"
    typer.echo(f"step {replayed.step} again, from {start}\n")
    table = Table("", box=None, pad_edge=False, header_style="dim")
    for heading in ("recorded", "replayed", "off by", "allowed"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in replayed.comparisons:
        numbers = (f"{one.recorded:.9g}", f"{one.replayed:.9g}", f"{one.off:.2g}", f"{one.tolerance:.2g}")
        table.add_row(one.name, *numbers, "equal" if one.equal else "differs")
    Console(highlight=False).print(table)
