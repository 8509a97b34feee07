"""`loopwright migrate`: rewrites a config with old keys to the present ones."""

from __future__ import annotations

import typer

from loopwright.cli.arguments import ConfigFile
from loopwright.cli.show_errors import MEND_THE_INPUT, show_warning
from loopwright.config import migrate_file


def migrate(file: ConfigFile) -> None:
    """Print a config with old nested keys (actor_rollout_ref) in today's spelling; say what is left to do by hand."""
    from yaml import safe_dump

    migrated = migrate_file(file)
    for notice in migrated.notices:
        typer.echo(f"# {notice}", err=True)
    for problem in migrated.problems:
        show_warning(problem)
    typer.echo(safe_dump(migrated.values, sort_keys=False, allow_unicode=True), nl=False)
    if migrated.problems:
        raise typer.Exit(MEND_THE_INPUT)
