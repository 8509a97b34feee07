"""Packages that only some configs need. Whether they are installed is checked before anything starts."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from loopwright.config.base import Section
from loopwright.config.needs import Outside
from loopwright.errors import ConfigError


class Extra(NamedTuple):
    """A package, and the pip extra that brings it."""

    package: str
    name: str

    @property
    def remedy(self) -> str:
        return f"pip install 'loopwright[{self.name}]'"


EXTRAS = {
    extra.name: extra
    for extra in (
        Extra("pyarrow", "parquet"),
        Extra("datasets", "datasets"),
        Extra("reasoning_gym", "reasoning-gym"),
        Extra("math_verify", "math"),
        Extra("httpx", "http"),
        Extra("uvicorn", "serve"),
        Extra("starlette", "ui"),
        Extra("tensorboard", "tensorboard"),
        Extra("wandb", "wandb"),
        Extra("mlflow", "mlflow"),
        Extra("mcp", "mcp"),
        Extra("renderers", "renderers"),
        Extra("ray", "ray"),
        Extra("peft", "lora"),
    )
}
"""The pip extras by name. The sections of the config say which ones they need (`Section.needs`)."""


def missing(name: str) -> Extra | None:
    """The extra called `name`, if its package is not installed."""
    extra = EXTRAS[name]
    return extra if importlib.util.find_spec(extra.package) is None else None


def require(name: str, user: str | None = None) -> None:
    """Raise unless the package of the extra called `name` is installed. `user` says who needs it."""
    if extra := missing(name):
        raise ConfigError(f"{user or name} needs the package {extra.package}", remedy=extra.remedy)


def require_extras(section: Section, user: str) -> None:
    """Raise unless the packages that `section` needs are installed."""
    for need in section.needs():
        if need.what is Outside.EXTRA:
            require(need.name, user)
