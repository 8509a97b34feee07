"""The tool loop that a config describes."""

from __future__ import annotations

from pathlib import Path

from loopwright.agents import McpServer, PythonTool, ToolBudget, ToolLoop, ToolSource
from loopwright.config import PythonToolConfig, ToolAgent, ToolConfig
from loopwright.types import Task, ToolScope


def make_tool_loop(agent: ToolAgent, base: Path) -> ToolLoop:
    """Load the user's functions; servers are started later."""
    return ToolLoop(
        [_source(tool, base) for tool in agent.tools],
        budget=ToolBudget(agent.max_turns, agent.max_tokens, agent.max_seconds, agent.turn_seconds),
        system=agent.system,
        parallel=agent.parallel,
    )


async def offered_tools(agent: ToolAgent, base: Path, task: Task) -> list[str]:
    """Open every tool once, as a rollout of the task would, and say what the model is offered."""
    async with make_tool_loop(agent, base) as loop, loop.open(task) as belt:
        return [str(tool["name"]) for tool in belt.offered]


def _source(tool: ToolConfig, base: Path) -> ToolSource:
    if isinstance(tool, PythonToolConfig):
        return PythonTool(tool.path, base, tool.timeout_seconds)
    return McpServer(
        tool.command,
        base,
        env=tool.env,
        only=tool.only,
        timeout_seconds=tool.timeout_seconds,
        start_seconds=tool.start_seconds,
        shared=tool.per is ToolScope.RUN,
    )
