"""Agent loops as the config describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.agents import SingleTurn, ToolLoop, is_resumable, make_agent, try_agent
from loopwright.agents.callable import CallableLoop
from loopwright.agents.runners.host import ProgramHost
from loopwright.config import AgentConfig, CallableAgent, PythonAgent, PythonToolConfig, SingleTurnAgent, ToolAgent
from loopwright.errors import ConfigError
from loopwright.types import Task

HERE = Path(__file__).parent
TASK = Task("t", ({"role": "user", "content": "2+2?"},))
LOOPS = """
class Loop:
    resumable = True
    async def run(self, task, policy): return []
class Plain:
    async def run(self, task, policy): return []
async def call(task, base_url, api_key): ...
"""
TOOLS = ToolAgent(
    judger="j", tools=(PythonToolConfig(path="user_tools.py:add"), PythonToolConfig(path="user_tools.py:look_up"))
)


def host_at(base: Path) -> ProgramHost:
    return ProgramHost.here(base, base / "run", {}, {})


@pytest.fixture
def host(tmp_path: Path) -> ProgramHost:
    (tmp_path / "loops.py").write_text(LOOPS)
    return host_at(tmp_path)


@pytest.mark.parametrize(
    ("config", "kind", "resumable"),
    [
        (SingleTurnAgent(judger="j"), SingleTurn, True),
        (ToolAgent(judger="j", tools=()), ToolLoop, False),
        (CallableAgent(judger="j", path="loops.py:call"), CallableLoop, False),
    ],
)
def test_a_kind_of_ours_makes_its_loop_and_knows_whether_it_resumes(
    config: AgentConfig, kind: type, resumable: bool, host: ProgramHost
) -> None:
    loop = make_agent(config, host)
    assert type(loop) is kind
    assert is_resumable(config, loop) is resumable


@pytest.mark.parametrize(("name", "resumable"), [("Loop", True), ("Plain", False)])
def test_a_loop_of_the_users_says_itself_whether_it_resumes(name: str, resumable: bool, host: ProgramHost) -> None:
    config = PythonAgent(judger="j", path=f"loops.py:{name}")
    assert is_resumable(config, make_agent(config, host)) is resumable


async def test_an_agent_is_tried_as_a_rollout_would_use_it(host: ProgramHost) -> None:
    assert await try_agent(SingleTurnAgent(judger="j"), host, TASK) is None
    tried = await try_agent(CallableAgent(judger="j", path="loops.py:call"), host, TASK)
    assert tried == "agent loops.py:call can be made"
    assert await try_agent(TOOLS, host_at(HERE), TASK) == "the model is offered add, look_up"


def test_a_missing_package_is_named(host: ProgramHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="callable needs the package uvicorn"):
        make_agent(CallableAgent(judger="j", path="loops.py:call"), host)
