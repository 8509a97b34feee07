"""Arguments that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer


def complete_setting(incomplete: str) -> list[str]:
    """The settings that begin with this text, for the shell's completion: those of all kinds of a section."""
    from loopwright.config.fields import options

    names = (re.sub(r"\[[^\]]*\]", "", option.partition(":")[0]) for option in options())
    return sorted({f"{name}=" for name in names if name.startswith(incomplete)})


ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The config file (YAML).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SETTING=VALUE",
        help="Settings that win over the file: rollout.temperature=0.7",
        autocompletion=complete_setting,
    ),
]
