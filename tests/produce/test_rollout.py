"""The boundary round user code: every way to fail has its own outcome, and none of them is a reward (R1, R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from house import KEY, roll_out

from loopwright.agents import SingleTurn
from loopwright.errors import ChainError, EngineError
from loopwright.judgers import IntegerAnswer
from loopwright.ports import AgentLoop, Judger, Policy
from loopwright.produce import judged
from loopwright.testing import CharRenderer, FlakyJudger, ScriptedEngine
from loopwright.types import (
    Failed,
    FailureCause,
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    OnAgentError,
    PauseMode,
    Rollout,
    Scored,
    StopReason,
    Task,
    Unscored,
)

TASK = Task.ask("sum", "12+7?", truth=19)


class Odd:
    """An agent that asks once and then does something odd."""

    def __init__(self, then: str, ask_first: bool = True) -> None:
        self.then, self.ask_first = then, ask_first

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        messages = list(task.messages)
        if self.ask_first:
            messages.append((await policy.reply(messages)).message)
        match self.then:
            case "raise":
                raise KeyError("tool")
            case "hang":
                await asyncio.sleep(60)
            case "own timeout":
                async with asyncio.timeout(0):
                    await asyncio.sleep(60)
            case "nothing":
                return None  # type: ignore[return-value]
            case "odd content":
                return [*messages, {"role": "tool", "content": {1, 2}}]
            case "ask oddly":
                await policy.reply([*messages, {"role": "tool", "content": {1, 2}}])
        return messages


class Wraps:
    """An agent that hides what its model call raised, behind its own exception or altogether."""

    def __init__(self, swallow: bool) -> None:
        self.swallow = swallow

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        try:
            await policy.reply(task.messages)
        except Exception:
            if not self.swallow:
                raise ValueError("my model is broken") from None
        return task.messages


async def run(
    loop: AgentLoop,
    engine: ScriptedEngine | None = None,
    *,
    judger: Judger | None = None,
    on_agent_error: OnAgentError = "fail",
    seconds: float = 30.0,
    judge_attempts: int = 2,
    max_context: int = 1000,
) -> Rollout:
    rollout = await roll_out(
        loop,
        engine or ScriptedEngine(["19"]),
        task=TASK,
        seconds=seconds,
        max_context=max_context,
        on_agent_error=on_agent_error,
    )
    if not rollout.awaits_judge:
        return rollout
    (scored,) = await judged([rollout], judger or IntegerAnswer(), judge_attempts)
    return scored


async def test_a_good_run_is_scored_on_its_episode() -> None:
    rollout = await run(SingleTurn())
    assert (rollout.key, rollout.task, rollout.reward) == (KEY, TASK, Scored(1.0, answer="19"))
    assert rollout.episode is not None
    assert rollout.episode.answer == "19"
    assert rollout.timing.started > 0


async def test_an_engine_failure_is_infrastructure() -> None:
    rollout = await run(SingleTurn(), ScriptedEngine(["19"], faults={0}))
    assert rollout.reward == Failed(FailureCause.INFRA, "EngineError", "scripted fault at call 0")
    assert rollout.episode is None


@pytest.mark.parametrize("swallow", [True, False])
@pytest.mark.parametrize("rule", ["fail", "grade", 0.0])
async def test_an_engine_failure_stays_one_whatever_the_agent_makes_of_it(swallow: bool, rule: OnAgentError) -> None:
    rollout = await run(Wraps(swallow), ScriptedEngine(["19"], faults={0}), on_agent_error=rule)
    assert isinstance(rollout.reward, Failed)
    assert rollout.reward.cause is FailureCause.INFRA


@pytest.mark.parametrize(
    ("then", "error", "words"),
    [("raise", "KeyError", "'tool' (test_rollout.py:"), ("own timeout", "TimeoutError", "in run)"),
     ("nothing", "AgentError", "returned None"), ("odd content", "AgentError", "message 2 (tool)"),
     ("ask oddly", "AgentError", "message 2 (tool)")],
)  # fmt: skip
async def test_an_agent_that_raises_fails_by_default(then: str, error: str, words: str) -> None:
    rollout = await run(Odd(then))
    assert isinstance(rollout.reward, Failed)
    assert (rollout.reward.cause, rollout.reward.error) == (FailureCause.AGENT, error)
    assert "agent Odd on task 'sum'" in rollout.reward.detail
    assert words in rollout.reward.detail


async def test_an_agent_that_raises_can_be_graded_on_what_it_did() -> None:
    rollout = await run(Odd("raise"), on_agent_error="grade")
    assert rollout.reward == Scored(1.0, answer="19")
    assert rollout.episode is not None
    assert rollout.episode.messages[-1] == {"role": "assistant", "content": "19"}


async def test_an_agent_that_did_nothing_cannot_be_graded() -> None:
    rollout = await run(Odd("raise", ask_first=False), on_agent_error="grade")
    assert isinstance(rollout.reward, Failed)


async def test_an_agent_that_raises_can_have_a_fixed_reward() -> None:
    rollout = await run(Odd("raise"), on_agent_error=-1.0)
    assert rollout.reward == Scored(-1.0, {"agent_error": 1.0})
    assert rollout.episode is not None
    assert rollout.episode.sampled_tokens == 3


async def test_an_agent_out_of_time_is_graded_on_what_it_did() -> None:
    rollout = await run(Odd("hang"), seconds=0.05)
    assert rollout.reward == Scored(1.0, answer="19")
    assert rollout.episode is not None
    assert rollout.episode.stop is StopReason.BUDGET


async def test_a_model_that_never_answers_is_infrastructure() -> None:
    rollout = await run(Odd("hang", ask_first=False), seconds=0.05)
    assert isinstance(rollout.reward, Failed)
    assert (rollout.reward.cause, rollout.reward.error) == (FailureCause.INFRA, "Timeout")


async def test_an_agent_that_asked_with_odd_content_can_be_graded_on_what_was_sound() -> None:
    rollout = await run(Odd("ask oddly"), on_agent_error="grade")
    assert rollout.reward == Scored(1.0, answer="19")
    assert rollout.episode is not None
    assert len(rollout.episode.messages) == 2


@pytest.mark.parametrize("loop", [SingleTurn(), Wraps(True), Odd("raise")])
@pytest.mark.parametrize("rule", ["fail", "grade", 0.0])
async def test_a_task_that_does_not_fit_is_a_failure_of_its_own_kind(loop: AgentLoop, rule: OnAgentError) -> None:
    rollout = await run(loop, on_agent_error=rule, max_context=5)
    tokens = len(CharRenderer().render(TASK.messages))
    assert isinstance(rollout.reward, Failed)
    assert (rollout.reward.cause, rollout.reward.error) == (FailureCause.TASK, "ContextError")
    words = f"task 'sum': a prompt of {tokens} tokens does not fit model.max_context 5"
    assert words in rollout.reward.detail


async def test_the_judge_alone_is_tried_again() -> None:
    engine = ScriptedEngine(["19"])
    judger = FlakyJudger(IntegerAnswer(), {0})
    rollout = await run(SingleTurn(), engine, judger=judger, judge_attempts=2)
    assert rollout.reward == Scored(1.0, answer="19")
    assert (judger.calls, len(engine.requests)) == (2, 1)


async def test_a_judge_that_keeps_failing_is_a_failure_with_its_episode_kept() -> None:
    judger = FlakyJudger(IntegerAnswer(), {0, 1, 2})
    rollout = await run(SingleTurn(), judger=judger, judge_attempts=3)
    assert isinstance(rollout.reward, Failed)
    assert rollout.reward.cause is FailureCause.JUDGE
    assert "integer_answer" in rollout.reward.detail
    assert rollout.episode is not None
    assert judger.calls == 3


class Broken(ScriptedEngine):
    """An engine with a bug of ours, or one that leaves logprobs out."""

    def __init__(self, bug: Exception | None = None) -> None:
        super().__init__([])
        self.bug = bug

    async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
        if self.bug:
            raise self.bug
        return Generation((1,), (), (0,), FinishReason.STOP)


@pytest.mark.parametrize("loop", [SingleTurn(), Wraps(True), Wraps(False)])
@pytest.mark.parametrize("bug", [ChainError("ours", remedy="none"), ZeroDivisionError("ours")])
async def test_our_own_bugs_crash_even_when_the_agent_hides_them(loop: AgentLoop, bug: Exception) -> None:
    with pytest.raises(type(bug)):
        await run(loop, Broken(bug), on_agent_error="grade")


@pytest.mark.parametrize("loop", [SingleTurn(), Wraps(True), Wraps(False)])
async def test_an_answer_without_its_logprobs_is_the_engines_failure_and_trains_nothing(loop: AgentLoop) -> None:
    rollout = await run(loop, Broken(), on_agent_error="grade")
    assert isinstance(rollout.reward, Failed)
    assert (rollout.reward.cause, rollout.reward.error) == (FailureCause.INFRA, "EngineError")
    assert rollout.episode is None


@pytest.mark.parametrize("loop", [SingleTurn(), Wraps(True), Wraps(False)])
async def test_an_interruption_is_a_partial_rollout_whatever_the_agent_makes_of_it(loop: AgentLoop) -> None:
    def engine() -> ScriptedEngine:
        return ScriptedEngine(lambda request: tuple(ord(c) for c in "nineteen" * 5)[request.sampled_before :], steps=1)

    async def part(seconds: float = 30.0, before: Rollout | None = None, tokens: int = 5) -> Rollout:
        on = engine()
        running = asyncio.create_task(
            roll_out(loop, on, task=TASK, seconds=seconds, max_context=500, resume_from=before, resumable=True)
        )
        for _ in range(tokens):
            await asyncio.sleep(0)
        await on.pause(PauseMode.ABORT)
        return await running

    rollout = await part()
    assert rollout.is_partial
    assert not rollout.awaits_judge
    assert isinstance(rollout.reward, Unscored)
    again = await part(before=rollout)
    assert again.is_partial
    assert again.episode is not None
    assert rollout.episode is not None
    assert again.episode.sampled_tokens > rollout.episode.sampled_tokens > 0
    assert again.timing.started == rollout.timing.started
    assert again.timing.agent_seconds > rollout.timing.agent_seconds
    whole = await part(before=again, tokens=100)
    assert whole.awaits_judge
    assert not whole.is_partial


async def test_cancellation_is_no_outcome() -> None:
    task = asyncio.create_task(run(Odd("hang")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_engine_error_inside_a_task_group_is_infrastructure() -> None:
    class Parallel:
        async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(policy.reply(task.messages))
            return task.messages

    rollout = await run(Parallel(), ScriptedEngine(["19"], faults={1}))
    assert isinstance(rollout.reward, Failed)
    assert rollout.reward.error == EngineError.__name__
