"""Packages that only some configs need: whether they are installed is asked before anything starts."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from loopwright.errors import ConfigError


class Extra(NamedTuple):
    """A package, and the pip extra that brings it."""

    package: str
    name: str

    @property
    def remedy(self) -> str:
        return f"pip install 'loopwright[{self.name}]'"


EXTRAS = {
    "parquet": Extra("pyarrow", "parquet"),
    "dataset": Extra("datasets", "datasets"),
    "reasoning_gym": Extra("reasoning_gym", "reasoning-gym"),
    "math_answer": Extra("math_verify", "math"),
    "http": Extra("httpx", "http"),
    "llm": Extra("httpx", "http"),
    "serve": Extra("uvicorn", "serve"),
    "gateway": Extra("uvicorn", "serve"),
    "callable": Extra("uvicorn", "serve"),
    "tensorboard": Extra("tensorboard", "tensorboard"),
    "mcp": Extra("mcp", "mcp"),
    "renderers": Extra("renderers", "renderers"),
}
"""What a kind of data, judger or tool, or a switch of the same name, needs. Kinds that are not here need nothing."""


def missing(kind: str) -> Extra | None:
    """What `kind` needs, if it is not installed."""
    extra = EXTRAS.get(kind)
    return extra if extra and importlib.util.find_spec(extra.package) is None else None


def require(kind: str) -> None:
    """Raise unless what `kind` needs is installed."""
    if extra := missing(kind):
        raise ConfigError(f"{kind} needs the package {extra.package}", remedy=extra.remedy)
