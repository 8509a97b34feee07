"""Which chains of a rollout are trained: those that were chosen, and no other's weight depends on it (R1, T6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from house import roll_out

from loopwright.agents import MainChains, UserChoice
from loopwright.errors import FilterError
from loopwright.ports import AgentLoop, ChainChoice, Policy
from loopwright.testing import ScriptedEngine
from loopwright.types import (
    Failed,
    FailureCause,
    Message,
    OnAgentError,
    Rollout,
    Scored,
    Task,
    Tool,
    Unscored,
)

TASK = Task.ask("sum", "12+7?", truth=19)
ADD: Tool = {"name": "add", "description": "Adds.", "parameters": {}}

CHOICES = """
def longest(chains):
    return [max(chains, key=lambda chain: chain.sampled_tokens)]

async def separate(chains):
    return [chain for chain in chains if chain.start == "separate"]

async def nothing(chains):
    return []

async def numbers(chains):
    return [0]

def broken(chains):
    return chains.main
"""


class Broken:
    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        raise KeyError("early")


class WithSubAgent:
    """Two turns of its own, and between them a sub-agent's one; it may break at the end."""

    def __init__(self, breaks: bool = False) -> None:
        self.breaks = breaks

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        messages = [*task.messages, (await policy.reply(task.messages, tools=(ADD,))).message]
        await policy.reply([{"role": "user", "content": "sub-agent, what is it?"}])
        messages.append({"role": "user", "content": "and?"})
        messages.append((await policy.reply(messages, tools=(ADD,))).message)
        if self.breaks:
            raise KeyError("late")
        return messages


async def rollout(train: ChainChoice | None, rule: OnAgentError = "fail", loop: AgentLoop | None = None) -> Rollout:
    engine = ScriptedEngine(["a", "a long answer", "b"])
    return await roll_out(loop or WithSubAgent(), engine, task=TASK, max_context=1000, on_agent_error=rule, train=train)


def trained(made: Rollout) -> list[bool]:
    assert made.episode is not None
    return [chain.trained for chain in made.episode.chains]


@pytest.fixture
def choice(tmp_path: Path) -> Path:
    (tmp_path / "choices.py").write_text(CHOICES)
    return tmp_path


async def test_all_chains_are_trained_unless_somebody_chooses() -> None:
    assert trained(await rollout(None)) == [True, True]


async def test_the_main_conversation_is_trained_and_the_rest_is_recorded() -> None:
    made = await rollout(MainChains())
    assert trained(made) == [True, False]
    assert made.episode is not None
    assert made.episode.tools == (ADD,)
    assert (made.episode.sampled_tokens, made.episode.trained_tokens) == (2 + 14 + 2, 4)
    assert isinstance(made.reward, Unscored)


@pytest.mark.parametrize(
    ("name", "wanted"), [("longest", [False, True]), ("separate", [False, True]), ("nothing", [False, False])]
)
async def test_a_function_of_the_users_chooses(choice: Path, name: str, wanted: list[bool]) -> None:
    async with UserChoice(f"choices.py:{name}", choice, 30) as own:
        assert trained(await rollout(own)) == wanted


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [("numbers", "WrongReturn", "must return a list of the chains"), ("broken", "AttributeError", "choices.py:1")],
)
async def test_a_choice_that_cannot_be_made_fails_the_rollout(choice: Path, name: str, error: str, words: str) -> None:
    async with UserChoice(f"choices.py:{name}", choice, 30) as own:
        reward = (await rollout(own)).reward
        assert isinstance(reward, Failed)
        assert (reward.cause, reward.error) == (FailureCause.AGENT, error)
        assert words in reward.detail
        with pytest.raises(FilterError, match=name):
            await own.choose(())


async def test_what_an_agent_did_before_it_raised_is_chosen_from_too(choice: Path) -> None:
    made = await rollout(MainChains(), 0.5, WithSubAgent(breaks=True))
    assert isinstance(made.reward, Scored)
    assert trained(made) == [True, False]


async def test_of_an_agent_that_never_asked_nothing_is_chosen(choice: Path) -> None:
    async with UserChoice("choices.py:longest", choice, 30) as own:
        assert (await rollout(own, 0.0, Broken())).reward == Scored(0.0, {"agent_error": 1.0})
