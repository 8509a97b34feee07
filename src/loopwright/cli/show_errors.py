"""Shows errors on the terminal, and chooses their exit codes."""

from __future__ import annotations

import typer

from loopwright.errors import ConfigError, DataError, LoopwrightError, ModelError

MEND_THE_INPUT = 2
FAILED = 1
INTERRUPTED = 130


def show_error(error: LoopwrightError) -> None:
    """Print what is wrong, in red, and what to do."""
    typer.secho(f"error: {error.message}", fg=typer.colors.RED, err=True)
    for note in getattr(error, "__notes__", ()):
        typer.echo(f"  {note}", err=True)
    typer.echo(f"  -> {error.remedy}", err=True)


def show_warning(text: str) -> None:
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)


def exit_code(error: LoopwrightError) -> int:
    """2 if the user's files or settings have to change, else 1."""
    return MEND_THE_INPUT if isinstance(error, ConfigError | DataError | ModelError) else FAILED
