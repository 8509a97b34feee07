"""Where commands keep their own files: never in the current folder."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path

from loopwright.errors import ConfigError

MOST_LETTERS = 60


def state_folder(command: str) -> Path:
    """The folder of one command. Only its owner can read it."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = base / "loopwright" / command
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error}", remedy="set XDG_STATE_HOME, or say with --store where to keep it"
        ) from error
    return folder


def file_name(about: str) -> str:
    """A readable file name for `about`. Different texts give different names."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", about)[-MOST_LETTERS:].strip("-.")
    return f"{readable}-{blake2b(about.encode(), digest_size=4).hexdigest()}"
