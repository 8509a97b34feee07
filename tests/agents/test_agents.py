"""Agent loops: the built-in one, the user's own by path, and the example."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.agents import EnginePolicy, SingleTurn, load_agent
from loopwright.errors import ConfigError
from loopwright.ports import AgentResult
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import Sampling, Task

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = Path(__file__).parent
TASK = Task.ask("t", "12+7?", truth=19)


def policy(engine: ScriptedEngine) -> EnginePolicy:
    return EnginePolicy(engine, CharRenderer(), Sampling(), "a/0/0/0", max_context=1000)


async def test_single_turn_asks_once_with_its_system_message_first() -> None:
    engine = ScriptedEngine(["19"])
    messages = await SingleTurn("Be brief.").run(TASK, policy(engine))
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert messages[-1]["content"] == "19"
    assert CharRenderer().text(engine.requests[0].prompt_ids) == "system: Be brief.user: 12+7?assistant: "


async def test_the_example_agent_asks_again_only_when_needed() -> None:
    loop = load_agent("custom_agent.py:AskTwice", EXAMPLES, {"reminder": "Number!"})
    short = policy(ScriptedEngine(["19"]))
    said = await loop.run(TASK, short)
    assert not isinstance(said, AgentResult)
    assert len(said) == 2

    engine = ScriptedEngine(["It is 19.", "19"])
    talkative = policy(engine)
    messages = await loop.run(TASK, talkative)
    assert not isinstance(messages, AgentResult)
    assert [message["content"] for message in messages] == ["12+7?", "It is 19.", "Number!", "19"]
    episode = talkative.episode(messages)
    assert len(episode.chains) == 1, "the second turn continues the first"
    assert episode.sampled_tokens == len("It is 19.") + len("19") + 2


@pytest.mark.parametrize(
    ("path", "args", "message"),
    [
        ("test_agents.py:TASK", {}, "cannot be called"),
        ("test_agents.py:NoRun", {}, "made a NoRun without `async def run`"),
        ("test_agents.py:NoRun", {"depth": 3}, r"could not be made with args \{'depth': 3\}: TypeError"),
    ],
)
def test_a_path_that_makes_no_agent_is_a_config_error(path: str, args: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_agent(path, HERE, args)


class NoRun:
    def run(self) -> None: ...
