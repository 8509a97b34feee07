"""Where converted models are cached."""

from __future__ import annotations

import os
from pathlib import Path


def models_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopwright" / "models"
