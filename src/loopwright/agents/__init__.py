"""Agent loops, the policy through which they reach the model, and the worker that runs them."""

from loopwright.agents.callable import CallableLoop, load_callable
from loopwright.agents.chain_choice import MainChains, UserChoice
from loopwright.agents.custom import load_agent
from loopwright.agents.from_config import is_resumable, make_agent, try_agent
from loopwright.agents.policy import EnginePolicies, EnginePolicy
from loopwright.agents.single_turn import SingleTurn
from loopwright.agents.tool_loop import ToolBudget, ToolLoop, ToolSource
from loopwright.agents.tool_mcp import McpServer
from loopwright.agents.tool_python import PythonTool
from loopwright.agents.worker import AgentSetup, LocalWorker

__all__ = [
    "AgentSetup",
    "CallableLoop",
    "EnginePolicies",
    "EnginePolicy",
    "LocalWorker",
    "MainChains",
    "McpServer",
    "PythonTool",
    "SingleTurn",
    "ToolBudget",
    "ToolLoop",
    "ToolSource",
    "UserChoice",
    "is_resumable",
    "load_agent",
    "load_callable",
    "make_agent",
    "try_agent",
]
