"""The user's own agent loop, by import path or as an object."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isclass, iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from loopwright.config.imports import NO_OBJECTS, Objects, load_symbol
from loopwright.core.blame import blame
from loopwright.errors import ConfigError
from loopwright.ports import AgentLoop


def load_agent(path: str, base: Path, args: Mapping[str, Any], objects: Objects = NO_OBJECTS) -> AgentLoop:
    """Call the class or factory at `path` with `args`; what it makes must have `async def run(self, task, policy)`.

    An object that has such a method itself is the loop.
    """
    factory = load_symbol(path, base, objects)
    if not isclass(factory) and iscoroutinefunction(getattr(factory, "run", None)):
        if args:
            raise ConfigError(
                f"agent {path!r} is an object that is made already, and agent.args are {dict(args)}",
                remedy="leave out agent.args, or give the class instead of the object",
            )
        return cast(AgentLoop, factory)
    if not callable(factory):
        raise ConfigError(
            f"agent path {path!r} names {factory!r:.80}, which cannot be called",
            remedy="name a class with `async def run(self, task, policy)`, or a function that returns such an object",
        )
    try:
        loop = factory(**args)
    except Exception as error:
        raise ConfigError(
            f"agent {path!r} could not be made with args {dict(args)}: {blame(error)}",
            remedy="make `agent.args` match the parameters of the class or function",
        ) from error
    if not iscoroutinefunction(getattr(loop, "run", None)):
        raise ConfigError(
            f"agent {path!r} made a {type(loop).__name__} without `async def run`",
            remedy="give it `async def run(self, task, policy)` that returns the transcript",
        )
    return cast(AgentLoop, loop)
