"""The tools of an MCP server, which is a program that speaks MCP over its standard input and output.

A server belongs to one rollout or, if its tools keep no state, to the whole run (`mcp_shared.py`). It gets an
allow-listed environment (S3), and ends with its owner. A server that cannot be started, or dies during its rollout, is
an infrastructure failure: the rollout is retried (R2).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

from loopwright.agents.mcp_shared import SharedServer
from loopwright.agents.tool_call import BoundTool
from loopwright.config.extras import require
from loopwright.errors import ToolServerError
from loopwright.types import Task, Tool

if TYPE_CHECKING:
    from mcp import Client

CONNECTION_CLOSED = -32000

MOST_SAID = 500
"""How many of the last characters of a server's error output are quoted if it does not start."""


class McpServer:
    """A source of tools. With `shared` there is one server for all rollouts, started by `async with`."""

    def __init__(
        self,
        command: Sequence[str],
        base: Path,
        *,
        env: Mapping[str, str],
        only: Sequence[str] | None,
        timeout_seconds: float,
        start_seconds: float,
        shared: bool,
    ) -> None:
        require("mcp")
        self._command, self._base, self._env = tuple(command), base, dict(env)
        self._only = only
        self._timeout_seconds, self._start_seconds = timeout_seconds, start_seconds
        self._shared = SharedServer(self._started, timeout_seconds) if shared else None

    async def __aenter__(self) -> Self:
        if self._shared is not None:
            await self._shared.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._shared is not None:
            await self._shared.__aexit__(*exc)

    @asynccontextmanager
    async def open(self, task: Task, state: dict[str, Any]) -> AsyncIterator[Sequence[BoundTool]]:
        if self._shared is not None:
            # The shared server limits the time of calls itself.
            yield self._bound((await self._shared.running()).tools, self._shared.use, None)
            return
        async with self._started() as server:
            yield self._bound(server.tools, server.use, self._timeout_seconds)

    def _bound(
        self, tools: Sequence[Tool], use: Callable[[str, Mapping[str, Any]], Awaitable[str]], seconds: float | None
    ) -> list[BoundTool]:
        return [BoundTool(tool, seconds, partial(use, str(tool["name"]))) for tool in tools]

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[_Connection]:
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            try:
                async with AsyncExitStack() as stack:
                    yield await self._start(stack, said)
            except ExceptionGroup as group:
                # The client's task group wraps every exception that passes it, also those of other code.
                raise _innermost(group) from None

    async def _start(self, stack: AsyncExitStack, said: IO[str]) -> _Connection:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        program, *args = self._command
        server = StdioServerParameters(command=program, args=args, env=self._env, cwd=self._base)
        try:
            async with asyncio.timeout(self._start_seconds):
                client = await stack.enter_async_context(Client(stdio_client(server, errlog=cast(TextIO, said))))
                return _Connection(client, await self._list(client), self._lost)
        except Exception as error:
            said.seek(0)
            last = said.read()[-MOST_SAID:].strip()
            words = f"; it said: {last}" if last else ""
            raise self._lost(f"did not start: {_reason(_innermost(error))}{words}") from error

    async def _list(self, client: Client) -> list[Tool]:
        listed = (await client.list_tools()).tools
        missing = sorted(set(self._only or ()) - {tool.name for tool in listed})
        if missing:
            raise ValueError(f"it has no tool {', '.join(missing)}; it has {', '.join(tool.name for tool in listed)}")
        return [
            {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            for tool in listed
            if self._only is None or tool.name in self._only
        ]

    def _lost(self, what: str) -> ToolServerError:
        return ToolServerError(
            f"the MCP server `{' '.join(self._command)}` {what}",
            remedy="run that command by hand in the config's folder; it must speak MCP over stdio",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    """A running server. `lost` makes the error for a server that is gone."""

    client: Client
    tools: Sequence[Tool]
    lost: Callable[[str], ToolServerError]

    async def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        from mcp import MCPError

        try:
            result = await self.client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                raise self.lost(f"was lost while {name} ran") from error
            raise
        text = "\n".join(str(getattr(part, "text", f"[{part.type}]")) for part in result.content)
        return f"error: {text}" if result.is_error else text


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
