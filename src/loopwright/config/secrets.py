"""Keeps keys out of the config: it names environment variables, and only those are read.

The entry point passes the environment in; no other room reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopwright.config.base import needs_of
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import Problem
from loopwright.config.schema import RunConfig


def secrets_of(config: RunConfig, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that the config names and that are set."""
    return {need.name: env[need.name] for need in _variables(config) if env.get(need.name)}


def secret_problems(config: RunConfig, env: Mapping[str, str]) -> Iterator[Problem]:
    for need in _variables(config):
        name, value = need.name, env.get(need.name)
        if not value:
            remedy = f"export {name}, or name another one"
            yield Problem(need.place, f"the environment variable {name} is not set", remedy)
        elif need.what is Outside.KEY and not (value.isascii() and value.isprintable()):
            yield Problem(
                need.place,
                f"the environment variable {name} holds characters that no HTTP header can carry",
                "export the key as it was issued, without quotation marks or line breaks",
            )


def _variables(config: RunConfig) -> Iterator[Need]:
    return (need for need in needs_of(config) if need.what in (Outside.KEY, Outside.VARIABLE))
