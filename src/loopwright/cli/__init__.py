"""The command line. The only room that reads the environment and writes to the terminal by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

from loopwright.models.openmp import wait_without_spinning

TORCH_EXTRA = ("torch", "transformers", "safetensors")
"""Packages that only the commands which compute need."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: every error of ours is shown as what is wrong and what to do, without a traceback."""
    from loopwright.cli.app import app
    from loopwright.cli.show_errors import FAILED, exit_code, show_error
    from loopwright.errors import LoopwrightError, ModelError

    # Before any command imports torch, which loads OpenMP.
    wait_without_spinning(os.environ)
    try:
        app(None if arguments is None else list(arguments))
    except LoopwrightError as error:
        show_error(error)
        raise SystemExit(exit_code(error)) from None
    except ModuleNotFoundError as error:
        if error.name not in TORCH_EXTRA:
            raise
        show_error(ModelError(f"this command needs the package {error.name}", remedy="pip install 'loopwright[torch]'"))
        raise SystemExit(FAILED) from None
