"""Python functions as tools. An async function is awaited; any other runs in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any

from loopwright.agents.tool_call import BoundTool
from loopwright.agents.tool_schema import given_parameters, tool_of
from loopwright.config.imports import load_symbol
from loopwright.errors import ConfigError
from loopwright.types import Task
from loopwright.workers.own_thread import in_own_thread


class PythonTool:
    """A function by path. Its parameters `task` and `state` (a dict that lives as long as the rollout) are given to it;
    the model fills in the others."""

    def __init__(self, path: str, base: Path, timeout_seconds: float) -> None:
        function = load_symbol(path, base)
        if not callable(function):
            raise ConfigError(f"tool {path!r} names {function!r:.80}, which cannot be called", remedy="name a function")
        self._function: Callable[..., Any] = function
        self._timeout_seconds = timeout_seconds
        self._tool = tool_of(function, path)
        self._given = given_parameters(function)

    @asynccontextmanager
    async def open(self, task: Task, state: dict[str, Any]) -> AsyncIterator[Sequence[BoundTool]]:
        given = {name: value for name, value in (("task", task), ("state", state)) if name in self._given}
        yield [BoundTool(self._tool, self._timeout_seconds, partial(self._use, given))]

    async def _use(self, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> object:
        call = partial(self._function, **{**arguments, **given})
        result = call() if iscoroutinefunction(self._function) else await in_own_thread(call, "loopwright-tool")
        return await result if isawaitable(result) else result
