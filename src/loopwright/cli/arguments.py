"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The config file (YAML).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SETTING=VALUE", help="Settings that win over the file: rollout.temperature=0.7"),
]
