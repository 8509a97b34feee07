"""Packages that only some configs need: whether they are installed is asked before anything starts."""

from __future__ import annotations

import importlib.util

from loopwright.errors import ConfigError


def require(module: str, *, extra: str, what: str) -> None:
    """Raise unless `module` is installed. `what` needs it, and the pip extra `extra` brings it."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{what} need the package {module}", remedy=f"pip install 'loopwright[{extra}]'")
