"""Makes agent loops from the config, for training, evaluation and the deep check."""

from __future__ import annotations

from pathlib import Path

from loopwright.agents.callable import load_callable
from loopwright.agents.custom import load_agent
from loopwright.agents.remote import RemoteLoop, WeightedRunner
from loopwright.agents.runners.command import CommandRunner
from loopwright.agents.runners.harbor import HarborRunner
from loopwright.agents.runners.harbor_paths import task_folder
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.server import ServerRunner
from loopwright.agents.single_turn import SingleTurn
from loopwright.agents.tool_loop import ToolBudget, ToolLoop, ToolSource
from loopwright.agents.tool_mcp import McpServer
from loopwright.agents.tool_python import PythonTool
from loopwright.config import (
    NO_OBJECTS,
    AgentConfig,
    CallableAgent,
    CommandRunnerConfig,
    HarborRunnerConfig,
    McpToolsConfig,
    Objects,
    ProgramReward,
    PythonAgent,
    PythonToolConfig,
    RemoteAgent,
    RunnerConfig,
    ServerRunnerConfig,
    SingleTurnAgent,
    ToolAgent,
    ToolConfig,
)
from loopwright.config.extras import require_extras
from loopwright.ports import AgentLoop, ProgramRunner
from loopwright.types import Task, ToolScope


def make_agent(config: AgentConfig, host: ProgramHost, objects: Objects = NO_OBJECTS) -> AgentLoop:
    """Load the user's code and make the loop. Relative paths start from `host.base`. `objects` are those that a Python
    program gave.

    A loop that is a context manager must be entered before it runs.
    """
    base = host.base
    require_extras(config, config.kind)
    match config:
        case SingleTurnAgent():
            return SingleTurn(config.system)
        case PythonAgent():
            return load_agent(config.path, base, config.args, objects)
        case CallableAgent():
            return load_callable(config.path, base, config.args, config.max_tokens, objects)
        case ToolAgent():
            return _tool_loop(config, base)
        case RemoteAgent():
            return _remote_loop(config, host)


def is_resumable(config: AgentConfig, loop: AgentLoop) -> bool:
    """Whether a rollout of `loop`, made from `config`, can be interrupted and continue from its tokens."""
    if config.resumable is None:
        return getattr(loop, "resumable", False) is True
    return config.resumable


async def try_agent(config: AgentConfig, host: ProgramHost, task: Task) -> str | None:
    """Make the loop, open what a rollout of `task` would open, and return a line about it for the user."""
    loop = make_agent(config, host)
    if isinstance(loop, ToolLoop):
        async with loop, loop.open(task) as belt:
            return f"the model is offered {', '.join(str(tool['name']) for tool in belt.offered)}"
    if isinstance(config, RemoteAgent):
        for runner in config.all_runners:
            if isinstance(runner, HarborRunnerConfig):
                task_folder(task, runner, host.base)
        return f"each rollout starts {' or '.join(one.what_starts for one in config.all_runners)}"
    return None if config.own_code is None else f"agent {config.own_code} can be made"


def _remote_loop(config: RemoteAgent, host: ProgramHost) -> RemoteLoop:
    reward = config.reward if config.brings_reward else None
    return RemoteLoop(
        [WeightedRunner(_runner(one, config, reward, host), one.weight) for one in config.all_runners],
        max_seconds=config.max_seconds,
        max_tokens=config.max_tokens,
        grades_failures=config.on_agent_error == "grade",
    )


def _runner(runner: RunnerConfig, agent: RemoteAgent, reward: ProgramReward | None, host: ProgramHost) -> ProgramRunner:
    grades_failures = agent.on_agent_error == "grade"
    match runner:
        case CommandRunnerConfig():
            return CommandRunner(runner, reward, host)
        case HarborRunnerConfig():
            return HarborRunner(runner, host, grades=agent.brings_reward, grades_failures=grades_failures)
        case ServerRunnerConfig():
            return ServerRunner(runner, reward, host, grades=agent.brings_reward, grades_failures=grades_failures)


def _tool_loop(config: ToolAgent, base: Path) -> ToolLoop:
    """Make the tool loop. The user's functions are loaded here; servers are started later."""
    return ToolLoop(
        [_tools(tool, base) for tool in config.tools],
        budget=ToolBudget(config.max_turns, config.max_tokens, config.max_seconds, config.turn_seconds),
        system=config.system,
        parallel=config.parallel,
    )


def _tools(config: ToolConfig, base: Path) -> ToolSource:
    match config:
        case PythonToolConfig():
            return PythonTool(config.path, base, config.timeout_seconds)
        case McpToolsConfig():
            return McpServer(
                config.command,
                base,
                env=config.env,
                only=config.only,
                timeout_seconds=config.timeout_seconds,
                start_seconds=config.start_seconds,
                shared=config.per is ToolScope.RUN,
            )
