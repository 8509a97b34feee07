"""Agent loops, and the policy through which they reach the model."""

from loopwright.agents.callable import CallableLoop, load_callable
from loopwright.agents.custom import load_agent
from loopwright.agents.from_config import is_resumable, make_agent, try_agent
from loopwright.agents.policy import EnginePolicy
from loopwright.agents.single_turn import SingleTurn
from loopwright.agents.tool_loop import ToolBudget, ToolLoop, ToolSource
from loopwright.agents.tool_mcp import McpServer
from loopwright.agents.tool_python import PythonTool

__all__ = [
    "CallableLoop",
    "EnginePolicy",
    "McpServer",
    "PythonTool",
    "SingleTurn",
    "ToolBudget",
    "ToolLoop",
    "ToolSource",
    "is_resumable",
    "load_agent",
    "load_callable",
    "make_agent",
    "try_agent",
]
