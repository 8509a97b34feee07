"""`loopwright config`: every field of the merged config, and who set it."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from loopwright.cli.arguments import ConfigFile, Overrides
from loopwright.cli.show_errors import show_warning
from loopwright.config import Layer, Loaded, load

PIPE_WIDTH = 200
"""The width for a pipe, which has none: no row is broken."""


def config(
    file: ConfigFile,
    overrides: Overrides = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the merged config as plain YAML.")] = False,
) -> None:
    """Show every setting with its value and where it comes from."""
    loaded = load(file, overrides or [], os.environ)
    for warning in loaded.warnings:
        show_warning(warning)
    if yaml:
        _print_yaml(loaded)
    else:
        _print_table(loaded)


def _print_yaml(loaded: Loaded) -> None:
    from yaml import safe_dump

    typer.echo(safe_dump(loaded.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True), nl=False)


def _print_table(loaded: Loaded) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("setting", "value", "source", box=None, pad_edge=False)
    for setting in loaded.settings():
        style = "dim" if setting.source.layer is Layer.DEFAULT else ""
        cells = (setting.name, json.dumps(setting.value, ensure_ascii=False), str(setting.source))
        table.add_row(*(Text(cell, style, overflow="fold") for cell in cells))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
