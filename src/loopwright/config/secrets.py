"""Keys stay out of the config: it names environment variables, and only the named ones are read.

The entry point hands the environment over; no other room looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopwright.config.judgers import EndpointConfig, NativeJudgerConfig
from loopwright.config.problems import KeyPath, Problem
from loopwright.config.schema import RunConfig


def secrets_of(config: RunConfig, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that the config names, as far as they are set."""
    return {name: env[name] for _, name in _named(config) if env.get(name)}


def secret_problems(config: RunConfig, env: Mapping[str, str]) -> Iterator[Problem]:
    for place, name in _named(config):
        if not env.get(name):
            yield Problem(place, f"the environment variable {name} is not set", f"export {name}, or name another one")
    for place, name in _keys(config):
        if (key := env.get(name)) and not (key.isascii() and key.isprintable()):
            yield Problem(
                place,
                f"the environment variable {name} holds characters that no HTTP header can carry",
                "export the key as it was issued, without quotation marks or line breaks",
            )


def _keys(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    for name, judger in config.judgers.items():
        if isinstance(judger, EndpointConfig) and judger.api_key_env is not None:
            yield ("judgers", name, "api_key_env"), judger.api_key_env


def _named(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    yield from _keys(config)
    for name, judger in config.judgers.items():
        if isinstance(judger, NativeJudgerConfig):
            yield from ((("judgers", name, "env"), variable) for variable in judger.env)
