"""Calls tools for a model.

A tool is the user's code, and this is the boundary around it (R1): whatever it raises, and every call that cannot be
made, becomes text that the model reads (R2). Only a permanent loss, such as a server that died, ends the rollout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.core.blame import blame
from loopwright.errors import ConfigError, ToolServerError
from loopwright.types import Message, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool that can be called in one rollout. `use` may raise anything. Without `timeout_seconds` it may take any
    time."""

    tool: Tool
    timeout_seconds: float | None
    use: Callable[[Mapping[str, Any]], Awaitable[object]]

    @property
    def name(self) -> str:
        return str(self.tool["name"])


class ToolBelt:
    """The tools of one rollout. With `parallel`, the calls of one reply run at the same time."""

    def __init__(self, tools: Sequence[BoundTool], *, parallel: bool = True) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._parallel = parallel
        if len(self._tools) != len(tools):
            names = [tool.name for tool in tools]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(
                f"several tools are named {', '.join(twice)}", remedy="rename them, or list what is wanted in `only`"
            )

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools as the model sees them."""
        return tuple(tool.tool for tool in self._tools.values())

    async def answer(self, calls: Sequence[ToolCall]) -> list[Message]:
        """The results of a reply's calls, in the order of the calls."""
        if not self._parallel:
            return [await self._result(call) for call in calls]
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._result(call)) for call in calls]
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        return [task.result() for task in running]

    async def _result(self, call: ToolCall) -> Message:
        return {"role": "tool", "content": await self._text(call), "tool_call_id": call.id, "name": call.name}

    async def _text(self, call: ToolCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}; there are {', '.join(self._tools)}"
        deadline = asyncio.timeout(tool.timeout_seconds)
        try:
            async with deadline:
                return _as_text(await tool.use(json.loads(call.arguments)))
        except ToolServerError:
            raise
        except Exception as error:
            if deadline.expired():
                return f"error: {call.name} took longer than {tool.timeout_seconds:g} s"
            return f"error: {blame(error)}"


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    return "" if result is None else json.dumps(result, ensure_ascii=False, default=str)
