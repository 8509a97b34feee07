"""The command that runs a module of ours in a process of its own, by the same Python."""

from __future__ import annotations

import sys


def own_command(module: str, *arguments: str) -> list[str]:
    """The process does not import from the folder that it is started in (-P): a `calendar.py` of the user there would
    hide that of the standard library."""
    return [sys.executable, "-P", "-m", module, *arguments]
