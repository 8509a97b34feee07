"""`loopwright data`: makes files of tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Make files of tasks.", no_args_is_help=True, rich_markup_mode=None)


@data.callback()
def commands() -> None:
    """Make files of tasks."""


@data.command("harbor")
def harbor(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder whose subfolders are tasks of Harbor.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file to write.")],
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out tasks that cannot be read.")] = False,
) -> None:
    """Write the tasks of Harbor in a folder to a Parquet file, for `data: {kind: parquet}`."""
    from loopwright.config.extras import require
    from loopwright.core import caches
    from loopwright.data.harbor import read_tasks, scan

    require("parquet", "loopwright data harbor")
    from loopwright.data.harbor_table import write_table

    cache = caches.harbor_folder(os.environ)
    if skip_broken:
        for flaw in scan(folder, cache).flaws:
            typer.echo(f"skipped: {flaw}", err=True)
    records = read_tasks(folder, skip_broken=skip_broken, cache=cache)
    write_table(records, output)
    typer.echo(f"{output}: {len(records)} tasks")
