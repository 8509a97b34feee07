"""Where converted models, and what was read of tasks, are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def models_folder(env: Mapping[str, str]) -> Path:
    """The folder that the environment `env` names, or else the usual one."""
    return _ours(env) / "models"


def harbor_folder(env: Mapping[str, str]) -> Path:
    """Where the records of Harbor's tasks are, by the contents of their folders."""
    return _ours(env) / "harbor"


def _ours(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopwright"
