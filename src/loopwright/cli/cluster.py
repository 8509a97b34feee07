"""`loopwright cluster`: what of a run is on actors, and where."""

from __future__ import annotations

import asyncio
import os

import typer

from loopwright.cli.arguments import ConfigFile, Overrides
from loopwright.cli.show_errors import show_warning
from loopwright.config import load

cluster = typer.Typer(help="The actors of a run, and the cluster that they are on.", no_args_is_help=True)


@cluster.callback()
def _commands() -> None:
    """The actors of a run, and the cluster that they are on."""


@cluster.command("plan")
def plan(file: ConfigFile, overrides: Overrides = None) -> None:
    """Print who goes where. Nothing is started: with cluster.address the live cluster is asked."""
    from loopwright.build.cluster import plan_run, roles_of
    from loopwright.cluster.local_node import declares_too_much

    loaded = load(file, overrides or [], os.environ)
    for text in loaded.warnings:
        show_warning(text)
    if not roles_of(loaded.config):
        typer.echo("nothing of this run is on actors: num_actors is 0 everywhere")
        return
    planned = asyncio.run(plan_run(loaded))
    if (warning := declares_too_much(loaded.config.cluster.num_cpus)) is not None:
        show_warning(warning)
    for line in planned.lines():
        typer.echo(line)
