"""The command line. The only room that reads the environment and writes to the terminal by itself."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: every error of ours is shown as what is wrong and what to do, without a traceback."""
    from loopwright.cli.app import app
    from loopwright.cli.show_errors import exit_code, show_error
    from loopwright.errors import LoopwrightError

    try:
        app(None if arguments is None else list(arguments))
    except LoopwrightError as error:
        show_error(error)
        raise SystemExit(exit_code(error)) from None
