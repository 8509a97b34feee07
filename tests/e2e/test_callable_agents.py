"""Agents that are functions of the user's, trained through the gateway inside a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_training import run

from loopwright.config import load
from loopwright.core.chains import turns_of
from loopwright.errors import BudgetError, ConfigError
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.testing.tiny import tiny_llama
from loopwright.track.jsonl import read_jsonl
from loopwright.types import ChainStart, FailureCause, Rollout, StopReason

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_openai_tools.yaml"
PROMPT = 3 * 4 + 1
"""Messages of its prompt: three worked examples, and the question."""


def long_model(folder: Path) -> Path:
    """The example's prompt is long for a tokenizer that knows few words."""
    return tiny_llama(folder, initializer_range=0.3, max_position_embeddings=8192)


AGENTS = '''
import asyncio
from anthropic import Anthropic
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

def connect(base_url, api_key):
    # Reading the certificates of the world takes a while, and nobody here needs them.
    http = DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http)

async def two_turns(task, base_url, api_key):
    """Asks, and asks again."""
    async with connect(base_url, api_key) as client:
        messages = list(task.messages)
        for _ in range(2):
            reply = await client.chat.completions.create(model="m", messages=messages, temperature=0.1)
            messages += [reply.choices[0].message, {"role": "user", "content": "Go on."}]

def blocking(task, base_url, api_key, suffix):
    """A plain function with an SDK that blocks; it says its answer itself."""
    with Anthropic(base_url=base_url, api_key=api_key) as client:
        reply = client.messages.create(model="m", max_tokens=5, messages=list(task.messages))
    return (reply.content[0].text if reply.content else "") + suffix

async def raises(task, base_url, api_key):
    raise ValueError("no idea")

async def wrong_key(task, base_url, api_key):
    async with connect(base_url, "wrong") as client:
        await client.chat.completions.create(model="m", messages=list(task.messages))

async def too_long(task, base_url, api_key):
    async with connect(base_url, api_key) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 5000}])

async def in_a_form(task, base_url, api_key):
    """It asks for one of two letters as JSON."""
    letter = {"type": "object", "properties": {"letter": {"enum": ["a", "xyz"]}}, "required": ["letter"]}
    form = {"type": "json_schema", "json_schema": {"name": "letter", "schema": letter}}
    async with connect(base_url, api_key) as client:
        await client.chat.completions.create(model="m", messages=list(task.messages), response_format=form)

async def slow(task, base_url, api_key):
    async with connect(base_url, api_key) as client:
        await client.chat.completions.create(model="m", messages=list(task.messages))
        await asyncio.sleep(60)
'''


@pytest.fixture
def write(write_config: Any, tmp_path: Path) -> Any:
    def write(function: str, **changes: Any) -> Path:
        (tmp_path / "agents.py").write_text(AGENTS)
        agent = {"kind": "callable", "path": f"agents.py:{function}", "judger": "vowels", **changes.pop("more", {})}
        return Path(write_config(**{"agent": agent, "eval": None, "trainer__steps": 2, **changes}))

    return write


async def rollouts(config: Path) -> list[Rollout]:
    stored = StoredRun((await run(config)).rollouts)
    return [rollout for step in stored.steps() for rollout in stored.rollouts(step)]


async def test_an_agent_of_two_turns_is_trained_as_one_chain(write: Any) -> None:
    trained = await rollouts(write("two_turns"))
    assert len(trained) == 2 * 3 * 4
    assert len({str(rollout.episode) for rollout in trained}) > 4, "every rollout has a seed of its own"
    for rollout in trained:
        assert rollout.episode is not None
        (chain,) = rollout.episode.chains
        assert chain.start is ChainStart.FIRST
        assert len(turns_of(chain)) == 2
        assert [message["role"] for message in rollout.episode.messages] == ["user", "assistant"] * 2
        assert set(chain.versions[chain.mask].tolist()) <= {0, 1}


async def test_a_plain_function_may_block(write: Any) -> None:
    trained = await rollouts(write("blocking", more={"args": {"suffix": " aei"}}))
    assert all(rollout.episode and rollout.episode.answer.endswith(" aei") for rollout in trained)
    assert all(rollout.score and rollout.score >= 0.75 for rollout in trained)


async def test_a_rollouts_budget_ends_its_turns(write: Any) -> None:
    trained = await rollouts(write("two_turns", more={"max_tokens": 5}))
    assert all(rollout.episode and rollout.episode.sampled_tokens <= 5 for rollout in trained)
    assert {rollout.episode.stop for rollout in trained if rollout.episode} == {StopReason.BUDGET}


@pytest.mark.parametrize(
    ("function", "cause", "word"),
    [
        ("raises", FailureCause.AGENT, "no idea"),
        ("wrong_key", FailureCause.AGENT, "401"),
        ("too_long", FailureCause.TASK, "context"),
    ],
)
async def test_what_an_agent_fails_of_is_told(write: Any, function: str, cause: FailureCause, word: str) -> None:
    file = write(function, produce__max_attempts=1, produce__failure_budget=2)
    with pytest.raises(BudgetError, match=word) as stopped:
        await run(file)
    assert cause.value in str(stopped.value)


@pytest.mark.real
async def test_time_is_an_agents_budget(write: Any) -> None:
    once = {"trainer__steps": 1, "trainer__groups_per_step": 1}
    trained = await rollouts(write("slow", produce__agent_timeout_seconds=4.0, **once))
    assert {rollout.episode.stop for rollout in trained if rollout.episode} == {StopReason.BUDGET}


async def test_an_asynchronous_run_serves_them_across_weight_updates(write: Any) -> None:
    trained = await rollouts(write("two_turns", produce__kind="async", produce__over_sample=0.5))
    assert all(rollout.episode and len(rollout.episode.chains) == 1 for rollout in trained)


def test_they_are_not_deterministic(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.deterministic"):
        load(write("two_turns", trainer__deterministic=True), [], {}, files=True)


async def test_a_function_of_the_wrong_shape_is_refused_before_anything_starts(write: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be called with a task, a URL, a key"):
        await run(write("two_turns", more={"args": {"unknown": 1}}))


async def test_the_example_runs(tmp_path: Path) -> None:
    """A random model writes no tool calls, but the example's prompt, tools and turns are those of a real run."""
    config = yaml.safe_load(EXAMPLE.read_text())
    config["model"] = {"path": str(long_model(tmp_path / "model")), "threads": 1}
    config["trainer"] |= {"run_dir": str(tmp_path / "run"), "steps": 2, "groups_per_step": 2}
    config["rollout"] = {"samples_per_task": 2, "max_new_tokens": 8}
    config["track"] = {"console": False}
    for section in (config["data"], config["agent"]):
        section["path"] = f"{EXAMPLE.parent}/{section['path']}"
    del config["eval"]
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    trained = await rollouts(file)
    assert len(trained) == 2 * 2 * 2
    for rollout in trained:
        assert rollout.episode is not None
        assert len(rollout.episode.chains) == 1
        roles = [message["role"] for message in rollout.episode.messages]
        assert roles[:PROMPT] == ["user", "assistant", "tool", "assistant"] * 3 + ["user"]


@pytest.mark.real
@pytest.mark.timeout(600)
def test_two_steps_of_the_example_with_the_real_model(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    fewer = ["trainer.steps=2", "trainer.groups_per_step=2", "rollout.samples_per_task=8", "trainer.export=false"]
    few = ["eval.task_sets.0.data.path=agent_openai_tools.py:a_few_held_out", "eval.greedy=false"]
    command = [sys.executable, "-m", "loopwright.cli", "train", str(EXAMPLE), f"trainer.run_dir={folder.path}"]
    subprocess.run([*command, *fewer, *few], check=True, timeout=500)

    records = list(read_jsonl(folder.metrics))
    evaluated = [record["eval/eval/sampled/scored"] for record in records if "eval/eval/sampled/scored" in record]
    assert evaluated == [8, 8]
    assert sum(record.get("learner/trained_tokens", 0) for record in records) > 0
    stored = StoredRun(folder.rollouts)
    episodes = [rollout.episode for step in stored.steps() for rollout in stored.rollouts(step)]
    assert len(episodes) == 2 * 2 * 8
    for episode in episodes:
        assert episode is not None
        (chain,) = episode.chains
        called = len(episode.messages) > PROMPT + 1
        assert len(turns_of(chain)) == 1 + called
        assert called == ("tool" in {message["role"] for message in episode.messages[PROMPT:]})
    assert any(episode and len(episode.messages) > PROMPT + 1 for episode in episodes), "nobody called the tool"
    assert audit(folder.rollouts).is_clean


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_only_what_the_model_chose_of_a_form_is_trained(write: Any, kind: str) -> None:
    """Everything is stored with logprob and version; what had no choice is masked when the batch is taken."""
    folder = await run(write("in_a_form", produce__kind=kind, rollout__max_new_tokens=64))
    stored = StoredRun(folder.rollouts)
    for record in read_jsonl(folder.metrics):
        if "response/constrained" in record:
            assert 0.5 < record["response/constrained"] < 1
    assert stored.steps() == (1, 2)
    for step in stored.steps():
        whole = {str(rollout.key): rollout for rollout in stored.rollouts(step)}
        for group in stored.trained(step):
            for rollout in group.rollouts:
                assert rollout.episode is not None
                (chain,) = rollout.episode.chains
                (before,) = whole[str(rollout.key)].episode.chains  # type: ignore[union-attr]
                assert rollout.episode.answer in ('{"letter": "a"}', '{"letter": "xyz"}')
                assert (before.mask & ~before.constrained_mask).tolist() == chain.mask.tolist()
                assert 0 < chain.sampled < before.sampled
                assert not chain.constrained
    assert audit(folder.rollouts).is_clean
