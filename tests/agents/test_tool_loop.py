"""The agent with tools: calls, results, errors, state, budgets; one chain of exact tokens (T1), always graded (R2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents import EnginePolicy, PythonTool, ToolBudget, ToolLoop
from loopwright.engines.timed import TimedClient
from loopwright.errors import ConfigError, EngineError
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import Message, Sampling, StopReason, Task

HERE = Path(__file__).parent
TASK = Task.ask("t", "12+7?", truth=19)


def asks(name: str, **arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}",  "arguments": {json.dumps(arguments)}}}</tool_call>'


def tool(name: str, seconds: float = 5.0) -> PythonTool:
    return PythonTool(f"user_tools.py:{name}", HERE, seconds)


def loop_of(*names: str, turns: int = 8, parallel: bool = True, each: float = 5.0, **budget: Any) -> ToolLoop:
    tools = [tool(name, each) for name in names]
    return ToolLoop(tools, budget=ToolBudget(turns, **budget), parallel=parallel)


def policy_of(engine: ScriptedEngine, max_context: int = 10_000) -> EnginePolicy:
    return EnginePolicy(TimedClient(engine), CharRenderer(), Sampling(), "a/0/0/0", max_context=max_context)


async def ran(loop: ToolLoop, answers: Sequence[str], task: Task = TASK) -> tuple[list[Message], EnginePolicy]:
    policy = policy_of(ScriptedEngine(answers))
    async with loop:
        return list(await loop.run(task, policy)), policy


def results(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


async def test_a_call_its_result_and_the_answer_are_one_chain_of_what_the_engine_saw() -> None:
    engine = ScriptedEngine([f"Let me add. {asks('add', a=12, b=7)}", "19"])
    policy = policy_of(engine)
    messages = await loop_of("add").run(TASK, policy)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["content"] == "Let me add."
    assert messages[1]["tool_calls"] == ({"id": "call_0_0", "name": "add", "arguments": '{"a": 12, "b": 7}'},)
    assert messages[2] == {"role": "tool", "content": "19", "tool_call_id": "call_0_0", "name": "add"}
    episode = policy.episode(messages)
    assert (episode.answer, episode.stop) == ("19", StopReason.DONE)
    (chain,) = episode.chains
    assert tuple(chain.ids[: len(engine.requests[1].prompt_ids)]) == engine.requests[1].prompt_ids
    assert episode.sampled_tokens == len(f"Let me add. {asks('add', a=12, b=7)}") + len("19") + 2
    assert '"name": "add"' in CharRenderer().text(engine.requests[0].prompt_ids)


async def test_results_come_in_the_order_of_the_calls_and_state_lives_for_one_rollout() -> None:
    calls = asks("count") + asks("add", a=1) + asks("count")
    loop = loop_of("count", "add", parallel=False)
    for _ in range(2):
        messages, _ = await ran(loop, [calls, asks("count"), "done"])
        assert results(messages) == ["t: 1", "2", "t: 2", "t: 3"], "a new rollout begins with nothing"


async def test_calls_of_one_reply_run_at_the_same_time_unless_told_otherwise() -> None:
    for parallel, patience, met in ((True, 4.0, "together"), (False, 0.1, "alone")):
        calls = asks("meet", seconds=patience) * 2
        messages, _ = await ran(loop_of("meet", parallel=parallel), [calls, "home"])
        assert results(messages) == [met, met]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (asks("broken", what="oops"), "error: KeyError: 'oops' (user_tools.py:"),
        (asks("subtract", a=1), "error: there is no tool 'subtract'; there are broken, add, slow, sleepy"),
        (asks("add", c=1), "error: TypeError: "),
        (asks("slow"), "error: slow took longer than 0.05 s"),
        (asks("sleepy"), "error: sleepy took longer than 0.05 s"),
    ],
)
async def test_what_goes_wrong_with_a_tool_is_text_that_the_model_reads(call: str, said: str) -> None:
    loop = loop_of("broken", "add", "slow", "sleepy", each=0.05)
    messages, policy = await ran(loop, [call, "I see"])
    assert results(messages)[0].startswith(said)
    assert policy.episode(messages).stop is StopReason.DONE


async def test_a_malformed_call_is_an_answer() -> None:
    messages, _ = await ran(loop_of("add"), ["<tool_call>{add 12 7}</tool_call>"])
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[-1]["content"] == "<tool_call>{add 12 7}</tool_call>"


async def test_turns_are_a_budget() -> None:
    messages, policy = await ran(loop_of("add", turns=2), [asks("add", a=1)])
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert policy.episode(messages).stop is StopReason.BUDGET
    assert policy.fault is None


async def test_tokens_are_a_budget_over_all_turns() -> None:
    call = asks("add", a=1)
    messages, policy = await ran(loop_of("add", tokens=len(call) + 1), [call])
    assert (len(policy.turns), policy.episode(messages).stop) == (1, StopReason.BUDGET)
    messages, policy = await ran(loop_of("add", tokens=len(call) + 6), [call, "a long answer"])
    assert messages[-1]["content"] == "a lon"
    assert policy.episode(messages).stop is StopReason.BUDGET


@pytest.mark.parametrize("budget", [{"seconds": 0.1}, {"turn_seconds": 0.1}])
async def test_time_is_a_budget_of_the_agent_s(budget: dict[str, Any]) -> None:
    messages, policy = await ran(loop_of("slow", **budget), [asks("slow")])
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert policy.episode(messages).stop is StopReason.BUDGET
    assert policy.fault is None


async def test_a_model_that_never_answered_is_no_work_of_the_agent_s() -> None:
    engine = ScriptedEngine(["x"])
    await engine.pause()
    with pytest.raises(EngineError, match="no reply within the agent's time"):
        await loop_of("add", seconds=0.05).run(TASK, policy_of(engine))


async def test_a_full_context_is_a_budget_too() -> None:
    engine = ScriptedEngine([asks("add", a=1)])
    async with loop_of("add").open(TASK) as belt:
        prompt = CharRenderer().render(TASK.messages, belt.offered)
    policy = policy_of(engine, max_context=len(prompt) + 80)
    messages = await loop_of("add").run(TASK, policy)
    assert len(policy.turns) == 1
    assert policy.episode(messages).stop is StopReason.BUDGET


async def test_other_tools_begin_a_new_chain() -> None:
    policy = policy_of(ScriptedEngine(["a", "b"]))
    async with loop_of("add").open(TASK) as one, loop_of("add", "slow").open(TASK) as two:
        first = await policy.reply(TASK.messages, tools=one.offered)
        messages = [*TASK.messages, first.message, {"role": "user", "content": "and?"}]
        second = await policy.reply(messages, tools=two.offered)
    assert len(policy.episode([*messages, second.message]).chains) == 2


async def test_what_a_model_is_told_of_a_function() -> None:
    async with loop_of("add", "look_up", "count").open(TASK) as belt:
        add, look_up, count = belt.offered
    assert add == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "description": "the other number"}},
            "required": ["a"],
        },
    }
    assert look_up["parameters"]["properties"] == {
        "words": {"type": "array", "items": {"type": "string"}},
        "where": {"enum": ["here", "there"]},
    }
    assert count["parameters"] == {"type": "object", "properties": {}, "required": []}


async def test_a_result_that_is_no_text_is_json() -> None:
    messages, _ = await ran(loop_of("look_up"), [asks("look_up", words=["€"]), "done"])
    assert results(messages) == ['{"found": ["€"], "where": null}']


@pytest.mark.parametrize(
    ("name", "message"),
    [("NOT_A_FUNCTION", "cannot be called"), ("everything", "a model cannot fill in by name"), ("ad", "did you mean")],
)
def test_what_is_no_tool_is_a_config_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tool(name)


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="several tools are named add"):
        await ran(loop_of("add", "add"), ["19"])
