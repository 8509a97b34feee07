"""The tools of an MCP server that is started as a program and spoken to over its standard input and output.

A server belongs to one rollout, or, if its tools keep nothing, to the whole run. It gets an allow-listed environment
(S3), and ends with its owner. One that cannot be started or dies is a failure of infrastructure: the rollout is tried
again (R2).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

from loopwright.agents.tool_call import BoundTool
from loopwright.config.extras import require
from loopwright.errors import ToolServerError
from loopwright.types import Task

if TYPE_CHECKING:
    from mcp import Client

CONNECTION_CLOSED = -32000

MOST_SAID = 500
"""So many last characters of a server's complaints are repeated when it does not start."""


class McpServer:
    """Where tools come from. `shared`: one server for all rollouts, from `async with` on."""

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
        self._shared = shared
        self._stack = AsyncExitStack()
        self._tools: Sequence[BoundTool] = ()

    async def __aenter__(self) -> Self:
        if self._shared:
            self._tools = await self._stack.enter_async_context(self._started())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def open(self, task: Task, state: dict[str, Any]) -> AsyncIterator[Sequence[BoundTool]]:
        if self._shared:
            yield self._tools
            return
        async with self._started() as tools:
            yield tools

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[Sequence[BoundTool]]:
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            try:
                async with AsyncExitStack() as stack:
                    yield await self._start(stack, said)
            except ExceptionGroup as group:
                # The client's tasks wrap whatever passes them, also what is no business of theirs.
                raise _innermost(group) from None

    async def _start(self, stack: AsyncExitStack, said: IO[str]) -> Sequence[BoundTool]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        program, *args = self._command
        server = StdioServerParameters(command=program, args=args, env=self._env, cwd=self._base)
        try:
            async with asyncio.timeout(self._start_seconds):
                client = await stack.enter_async_context(Client(stdio_client(server, errlog=cast(TextIO, said))))
                return await self._list(client)
        except Exception as error:
            said.seek(0)
            last = said.read()[-MOST_SAID:].strip()
            words = f"; it said: {last}" if last else ""
            raise self._lost(f"did not start: {_reason(_innermost(error))}{words}") from error

    async def _list(self, client: Client) -> list[BoundTool]:
        listed = (await client.list_tools()).tools
        missing = sorted(set(self._only or ()) - {tool.name for tool in listed})
        if missing:
            raise ValueError(f"it has no tool {', '.join(missing)}; it has {', '.join(tool.name for tool in listed)}")
        return [
            BoundTool(
                {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
                self._timeout_seconds,
                partial(self._use, client, tool.name),
            )
            for tool in listed
            if self._only is None or tool.name in self._only
        ]

    async def _use(self, client: Client, name: str, arguments: Mapping[str, Any]) -> str:
        from mcp import MCPError

        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                raise self._lost(f"was lost while {name} ran") from error
            raise
        text = "\n".join(str(getattr(part, "text", f"[{part.type}]")) for part in result.content)
        return f"error: {text}" if result.is_error else text

    def _lost(self, what: str) -> ToolServerError:
        return ToolServerError(
            f"the MCP server `{' '.join(self._command)}` {what}",
            remedy="run that command by hand in the config's folder; it must speak MCP over stdio",
        )


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
