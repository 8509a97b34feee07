"""Where converted models are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def models_folder(env: Mapping[str, str]) -> Path:
    """The folder that the environment `env` names, or else the usual one."""
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopwright" / "models"
