"""Agents with sub-agents, trained through the gateway: what is trained, what is only recorded, and its drift."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_training import metrics, run

from loopwright.cli import main
from loopwright.errors import BudgetError
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import ChainStart, Rollout

WriteConfig = Callable[..., Path]

AGENTS = """
import asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}

async def with_sub_agents(task, base_url, api_key):
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http) as client:
        async def ask(messages, **more):
            reply = await client.chat.completions.create(model="m", messages=messages, **more)
            return reply.choices[0].message

        await ask([{"role": "user", "content": "A title?"}])
        messages = [*task.messages, await ask(list(task.messages), tools=[ADD])]
        sub = ([{"role": "user", "content": f"Sub-agent {n}: go."}] for n in range(2))
        await asyncio.gather(*(ask(one) for one in sub))
        messages += [{"role": "user", "content": "Go on."}]
        return [*messages, await ask(messages, tools=[ADD])]
"""

CHOICES = """
def sub_agents(chains):
    return [chain for chain in chains if not chain.is_main and "Sub-agent" in chain.messages[0]["content"]]

def broken(chains):
    raise ZeroDivisionError("no chain")
"""


@pytest.fixture
def write(write_config: WriteConfig, tmp_path: Path) -> WriteConfig:
    def write(train: str, **changes: Any) -> Path:
        (tmp_path / "agents.py").write_text(AGENTS)
        (tmp_path / "choices.py").write_text(CHOICES)
        agent = {"kind": "callable", "path": "agents.py:with_sub_agents", "judger": "vowels", "train": train}
        return write_config(agent=agent, eval=None, trainer__steps=2, trainer__groups_per_step=2, **changes)

    return write


def trained(folder: RunFolder) -> list[Rollout]:
    stored = StoredRun(folder.rollouts)
    return [rollout for step in stored.steps() for rollout in stored.rollouts(step)]


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


async def test_only_the_main_conversation_is_trained_and_all_of_it_is_recorded(
    write: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = await run(write("main"))
    rollouts = trained(folder)
    assert len(rollouts) == 2 * 2 * 4
    for rollout in rollouts:
        assert rollout.episode is not None
        chains = rollout.episode.chains
        assert sorted(chain.start for chain in chains) == [ChainStart.FIRST, *[ChainStart.SEPARATE] * 3]
        (main_chain,) = rollout.episode.trained_chains
        assert main_chain is chains[1], "the first conversation with tools"
        assert [tool["name"] for tool in rollout.episode.tools] == ["add"]
        assert rollout.episode.drift is not None
        assert rollout.episode.drift.tokens > 0
    assert metrics(folder, "chains/recorded") == {1: 32.0, 2: 32.0}
    assert metrics(folder, "chains/trained") == {1: 8.0, 2: 8.0}
    assert metrics(folder, "chains/forks_separate") == {1: 24.0, 2: 24.0}
    assert set(metrics(folder, "chains/forks_rewritten").values()) == {0.0}
    wrong = sum(rollout.episode.drift.wrong for rollout in rollouts if rollout.episode and rollout.episode.drift)
    assert sum(metrics(folder, "drift/wrong").values()) == wrong > 0, (
        "a random model spells nothing as a tokenizer would"
    )
    assert max(metrics(folder, "learner/mismatch_max").values()) < 1e-4
    report = folder.report.read_text("utf-8")
    assert "64 chains were recorded, 16 of them trained; forks: 48 separate." in report
    assert "tokenised again" in report
    assert command("drift", folder.path, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["conversations"], facts["chains"], facts["not_compared"]) == (16, 64, 0)
    assert facts["forks_by_reason"] == {"separate": 48}
    assert facts["wrong"] == wrong
    assert command("drift", folder.path) == 0
    assert "48 forks (48 separate)" in capsys.readouterr().out
    assert command("audit", folder.path) == 0
    assert await asyncio.to_thread(command, "replay", folder.path, "--step", 2) == 0
    assert command("show", folder.path, "--tokens", "--limit", 1) == 0
    shown = capsys.readouterr().out
    assert "tools add" in shown
    assert shown.count("not trained") == 3


@pytest.mark.real
async def test_a_function_of_the_users_chooses_what_is_trained(write: WriteConfig) -> None:
    for rollout in trained(await run(write("choices.py:sub_agents"))):
        assert rollout.episode is not None
        assert [chain.trained for chain in rollout.episode.chains] == [False, False, True, True]


async def test_a_choice_that_raises_ends_the_run_and_is_named(write: WriteConfig) -> None:
    file = write("choices.py:broken", produce__max_attempts=1, produce__failure_budget=2)
    with pytest.raises(BudgetError, match=r"agent\.train 'choices\.py:broken' raised ZeroDivisionError"):
        await run(file)
